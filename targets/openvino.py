"""OpenVINO IR (``model.xml`` and ``model.bin``) for desktop and laptop CPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import EdgeportError, InputError, LoweringError, MissingToolError, VerificationError
from build.legalize import legalize
from build.program import op_name, op_nodes, source_of
from targets.checks import check_inputs, check_outputs, range_text, signature_from_json, signature_to_json
from targets.contract import Coverage, Dim, Finding, Lowered, LowerRequest, Signature, TensorSpec
from targets.diagnosis import Refusal, blame, dtype_findings, mutation_findings, nan_unsafe, op_findings, packet

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array, Runner

REWRITES: tuple[str, ...] = (
    "flat_interface",
    "drop_derived_ranges",
    "float_floor_division",
    "int_floor_division_by_trunc",
    "int_remainder_by_trunc",
    "bitwise_and_tensors",
    "bitwise_or_tensors",
    "bitwise_xor_tensors",
    "left_shift_by_product",
    "right_shift_by_division",
    "cumprod_by_doubling",
    "var_any_correction",
    "std_any_correction",
    "lstm_cell_written_out",
    "gru_cell_written_out",
    "rnn_tanh_cell_written_out",
    "rnn_relu_cell_written_out",
    "trunc_by_floor",
    "frac_by_floor",
    "round_decimals",
    "softmax_dtype",
    "mean_dtype",
    "mean_dim_dtype",
    "std_mean_correction",
    "std_mean_dim",
    "std_mean_all",
    "var_mean_correction",
    "var_mean_dim",
    "median_by_sort",
    "diagonal_by_select",
    "gather_cropped",
    "pad_circular",
    "constant_pad_negative",
    "avg_pool2d_exact",
    "avg_pool1d_exact",
    "adaptive_avg_pool2d_by_windows",
    "antialiased_bilinear_by_matmul",
    "grouped_query_attention",
    "max_dim_with_nan",
    "min_dim_with_nan",
    "max_all_with_nan",
    "min_all_with_nan",
    "amax_with_nan",
    "amin_with_nan",
    "argmax_with_nan",
    "argmin_with_nan",
    "sign_of_nan",
    "own_output_nodes",
)

#: where the signature is kept in the IR's ``rt_info``.
RT_INFO = ["edgeport", "signature"]

FILES = ("model.xml", "model.bin")

#: dtype names of numpy -> OpenVINO's.
_ELEMENT_TYPES = {
    "bool": "boolean",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    **{f"{u}int{n}": f"{u[:1] or 'i'}{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}

_REFUSED: dict[str, Refusal] = {}

#: ops through which the CPU plugin loses NaN, each tried with NaN on OpenVINO 2026.4.1: JIT max, min and exp return the
#: other operand or infinity, sorts and searches order NaN differently.
_NAN_UNSAFE = frozenset(
    f"aten.{op}"
    for op in [
        "relu",
        "relu_",
        "relu6",
        "hardtanh",
        "hardtanh_",
        "hardsigmoid",
        "hardswish",
        "celu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "maximum",
        "minimum",
        "max",
        "min",
        "amax",
        "amin",
        "aminmax",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "max_pool1d_with_indices",
        "max_pool2d_with_indices",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "exp",
        "exp2",
        "expm1",
        "softmax",
        "_softmax",
        "log_softmax",
        "_log_softmax",
        "logsumexp",
        "scaled_dot_product_attention",
        "sign",
        "sgn",
        "argmax",
        "argmin",
        "sort",
        "argsort",
        "topk",
        "median",
        "any",
        "all",
        "fmax",
        "fmin",
    ]
)

#: integer ops whose result can leave 32 bits although their operands fit.
_GROWING = frozenset(
    f"aten.{op}"
    for op in [
        "mul",
        "pow",
        "cumsum",
        "cumprod",
        "prod",
        "sum",
        "matmul",
        "mm",
        "bmm",
        "mv",
        "dot",
        "addmm",
        "baddbmm",
        "__lshift__",
        "bitwise_left_shift",
        "square",
    ]
)

_INT32 = range(-(2**31), 2**31)

_COMPLEX = "OpenVINO has no complex numbers"


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """What OpenVINO's PyTorch frontend and CPU plugin cannot take. Needs torch only."""
    return [
        *mutation_findings(program, "OpenVINO IR"),
        *_wide_integers(program),
        *dtype_findings(program, signature, {"complex64": _COMPLEX, "complex128": _COMPLEX}),
        *op_findings(program, REWRITES, _REFUSED),
    ]


def _wide_integers(program: ExportedProgram) -> list[Finding]:
    """Integer constants beyond 32 bits: the CPU plugin computes all integers in 32 bits, and clamps them quietly."""
    import torch

    def finding(subject: str, source: str | None) -> Finding:
        return Finding(
            subject=subject,
            kind="op",
            verdict="refused",
            why="holds an integer beyond 32 bits, and OpenVINO's CPU plugin computes 64-bit integers in 32",
            source=source,
            remedy="Keep integers within 32 bits, or compute that part outside the model.",
        )

    found = []
    for node in op_nodes(program):
        value = node.meta.get("val")
        if getattr(value, "dtype", None) not in (torch.int64, torch.uint32, torch.uint64):
            continue
        # a slice's end is 2**63 - 1 where the program wrote none
        if packet(op_name(node)) in ("aten.slice", "aten.narrow", "aten.select", "aten.slice_scatter"):
            continue
        if any(type(a) is int and a not in _INT32 for a in (*node.args, *node.kwargs.values())):
            found.append(finding(op_name(node), source_of(node)))
    for name, tensor in {**program.state_dict, **program.constants}.items():
        wide = isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.int64, torch.uint32, torch.uint64)
        if wide and tensor.numel() and not (int(tensor.min()) in _INT32 and int(tensor.max()) in _INT32):
            found.append(finding(f"the tensor '{name}'", None))
    return found


def _width_warnings(program: ExportedProgram) -> tuple[str, ...]:
    """Where the CPU plugin's 32-bit integers and floats can differ from the program's 64-bit ones."""
    import torch

    found: dict[str, None] = {}
    for node in op_nodes(program):
        dtype = getattr(node.meta.get("val"), "dtype", None)
        where = f"{op_name(node)} at {source_of(node) or node.name}"
        if dtype is torch.int64 and packet(op_name(node)) in _GROWING:
            found[f"{where}: computed in 32-bit integers, wrong beyond 2**31"] = None
        elif dtype is torch.float64:
            found[f"{where}: computed in float32, not float64"] = None
    return tuple(found)


def _partial_shape(spec: TensorSpec) -> Any:
    import openvino as ov

    def dimension(size: Dim) -> Any:
        if isinstance(size, int):
            return ov.Dimension(size)
        return ov.Dimension(size.lo, -1 if size.hi is None else size.hi)

    return ov.PartialShape([dimension(s) for s in spec.shape])


def _decompose(program: ExportedProgram) -> ExportedProgram:
    """Down to the ops that OpenVINO's frontend knows: PyTorch's default decompositions but for those that it keeps."""
    from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose
    from torch.export.decomp_utils import CustomDecompTable

    table = CustomDecompTable()
    kept = set(ops_to_not_decompose())
    for op in [op for op in table.keys() if op in kept]:
        table.pop(op)
    return program.run_decompositions(table)


def _convert(program: ExportedProgram) -> Any:
    """A decomposed program as an ``ov.Model``: what ``ov.convert_model`` does, without its telemetry and with known sizes kept.

    ``convert_model`` sends a usage report over the network on each call, and makes every dimension dynamic.
    """
    from openvino._offline_transformations import apply_moc_transformations, compress_quantize_weights_transformation
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    frontend = FrontEndManager().load_by_framework("pytorch")
    # the decoder must outlive the conversion: the frontend keeps no reference of its own
    decoder = TorchFXPythonDecoder(program.module(), dynamic_shapes=False)
    model = frontend.convert(frontend.load(decoder))
    apply_moc_transformations(model, cf=False, smart_reshape=True)
    compress_quantize_weights_transformation(model)
    return model


def _set_interface(model: Any, signature: Signature) -> None:
    """Names, dtypes and bounds of the program on the converted model.

    Raises:
        LoweringError: the converter lost, added or retyped an input or output.
    """
    counts = (len(model.inputs), len(model.outputs))
    if counts != (len(signature.inputs), len(signature.outputs)):
        raise LoweringError(
            f"OpenVINO made {counts[0]} inputs and {counts[1]} outputs, the program has "
            f"{len(signature.inputs)} and {len(signature.outputs)}",
            op="the program",
            remedy="Return each tensor once, and use each input.",
        )
    for port, spec in (
        *zip(model.inputs, signature.inputs, strict=True),
        *zip(model.outputs, signature.outputs, strict=True),
    ):
        port.get_tensor().set_names({spec.name})
        port.get_node().set_friendly_name(spec.name)
        if port.get_element_type().get_type_name() != _ELEMENT_TYPES[spec.dtype]:
            raise LoweringError(
                f"OpenVINO made '{spec.name}' {port.get_element_type()}, the program's is {spec.dtype}",
                op=f"the tensor '{spec.name}'",
                remedy="Cast it explicitly in the model.",
            )
    model.reshape({i: _partial_shape(spec) for i, spec in enumerate(signature.inputs)})


def _stable_names(model: Any, signature: Signature) -> None:
    """Name nodes by their place in the graph: the converter's own names count up through the whole process."""
    io = {spec.name for spec in (*signature.inputs, *signature.outputs)}
    for i, node in enumerate(model.get_ordered_ops()):
        kind = node.get_type_name()
        if kind in ("Parameter", "Result") and node.get_friendly_name() in io:
            continue
        base = re.sub(r"(_\d+)+$", "", node.get_friendly_name().rsplit("/", 1)[-1])
        node.set_friendly_name(f"{base or kind}__{i}")
        for port in node.outputs():
            if not port.get_names() & io:
                port.get_tensor().set_names(set())
        for body in ("get_function", "get_then_body", "get_else_body"):
            inner = getattr(node, body, None)
            if inner is not None:
                _stable_names(inner(), Signature(inputs=(), outputs=()))


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Convert to IR with the program's names and bounds, and save it.

    fp16 halves the weights' size; arithmetic stays float32 unless the device prefers half.

    Raises:
        LoweringError: with the op, its source line and the way out.
    """
    import openvino as ov

    fragile = nan_unsafe(program, _NAN_UNSAFE)
    warnings = _width_warnings(program)
    if request.precision not in ("fp32", "fp16"):
        raise LoweringError(
            f"OpenVINO has no recipe for precision '{request.precision}'", op="the program", remedy="Use fp32 or fp16."
        )
    legal = legalize(program, REWRITES)
    try:
        legal = _decompose(legal)
        model = _convert(legal)
        _set_interface(model, request.signature)
        _stable_names(model, request.signature)
    except EdgeportError:
        raise
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="OpenVINO") from error
    model.set_friendly_name(request.model)
    model.set_rt_info(signature_to_json(request.signature), RT_INFO)
    xml = request.directory / FILES[0]
    ov.save_model(model, xml, compress_to_fp16=request.precision == "fp16")
    try:
        compiled = _compile(ov.Core(), ov.Core().read_model(xml))
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="OpenVINO's CPU plugin") from error
    return Lowered(files=FILES, coverage=_coverage(compiled), warnings=warnings, nan_unsafe=fragile)


def _compile(core: Any, model: Any) -> Any:
    # float32 arithmetic even where the CPU prefers bfloat16: the artifact is compared with float32 PyTorch.
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})


def _coverage(compiled: Any) -> Coverage:
    """Nodes of the CPU plugin's execution graph; those of type Reference have no kernel of the plugin's own."""
    fallback: Counter[str] = Counter()
    own = 0
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        kind = str(info["layerType"].astype(str)) if "layerType" in info else ""
        if kind in ("Input", "Output", "Const"):
            continue
        if kind == "Reference":
            fallback[node.get_friendly_name()] += 1
        else:
            own += 1
    return Coverage(
        delegated=own,
        fallback=dict(fallback),
        method="nodes of the CPU plugin's execution graph, reference kernels apart",
    )


def _declared(model: Any) -> Signature:
    """The signature that an IR declares: its own names, dtypes and bounds, with the symbols kept in its rt_info.

    Raises:
        VerificationError: the two disagree.
    """
    if not model.has_rt_info(RT_INFO):
        raise VerificationError("the IR has no edgeport signature in its rt_info")
    kept = signature_from_json(model.get_rt_info(RT_INFO).astype(str))
    for ports, specs in ((model.inputs, kept.inputs), (model.outputs, kept.outputs)):
        names = [sorted(p.get_names()) for p in ports]
        if names != [[s.name] for s in specs]:
            raise VerificationError(f"the IR's names {names} are not {[s.name for s in specs]}")
        for port, spec in zip(ports, specs, strict=True):
            found = port.get_element_type().get_type_name()
            if found != _ELEMENT_TYPES[spec.dtype]:
                raise VerificationError(f"the IR declares '{spec.name}' as {found}, not {spec.dtype}")
    for port, spec in zip(model.inputs, kept.inputs, strict=True):
        shape = port.get_partial_shape()
        if shape != _partial_shape(spec):
            wanted = [range_text(d) for d in spec.shape]
            raise VerificationError(f"the IR declares '{spec.name}' with shape {shape}, not {wanted}")
    return kept


def _check_width(inputs: Mapping[str, Array]) -> None:
    """Refuse integers that the CPU plugin would clamp to 32 bits.

    Raises:
        InputError: a value beyond 32 bits.
    """
    for name, array in inputs.items():
        if str(array.dtype) in ("int64", "uint64", "uint32") and array.size:
            lowest, highest = int(array.min()), int(array.max())
            if lowest not in _INT32 or highest not in _INT32:
                raise InputError(
                    f"input '{name}' holds values in {lowest}..{highest}; OpenVINO's CPU plugin computes integers in 32 bits"
                )


class OpenVinoRunner:
    """An IR on OpenVINO's CPU plugin, one thread, float32 arithmetic."""

    def __init__(self, model: Any, compiled: Any, runtime: str) -> None:
        self.runtime = runtime
        self._signature = _declared(model)
        self._compiled = compiled

    def signature(self) -> Signature:
        """As the IR declares it."""
        return self._signature

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once, in a request of its own: a failed call can then not return an earlier call's result."""
        import numpy as np
        import openvino as ov

        sizes = check_inputs(self._signature, inputs)
        _check_width(inputs)
        request = self._compiled.create_infer_request()
        for i, spec in enumerate(self._signature.inputs):
            request.set_input_tensor(
                i, ov.Tensor(np.ascontiguousarray(inputs[spec.name]).reshape(inputs[spec.name].shape))
            )
        try:
            request.infer()
        except RuntimeError as error:
            raise VerificationError(f"OpenVINO failed on these inputs: {error}") from error
        outputs = {
            spec.name: request.get_output_tensor(i).data.copy() for i, spec in enumerate(self._signature.outputs)
        }
        check_outputs(self._signature, sizes, outputs, self.runtime)
        return outputs


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """Read the IR back and compile it for this host's CPU.

    Raises:
        MissingToolError: OpenVINO is not installed.
        VerificationError: the IR cannot be read or compiled, or declares another signature than ``signature``.
    """
    try:
        import openvino as ov
    except ImportError as error:
        raise MissingToolError("OpenVINO is not installed", remedy="Install the 'openvino' group.") from error
    core = ov.Core()
    try:
        model = core.read_model(directory / lowered_files[0])
        compiled = _compile(core, model)
    except RuntimeError as error:
        raise VerificationError(f"OpenVINO refuses {lowered_files[0]}: {error}") from error
    runner = OpenVinoRunner(model, compiled, f"openvino {ov.__version__.split('-')[0]} (CPU)")
    if runner.signature() != signature:
        raise VerificationError(f"{lowered_files[0]} declares another signature than the program's")
    return runner
