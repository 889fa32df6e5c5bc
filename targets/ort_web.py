"""ONNX for ONNX Runtime Web (the wasm build's CPU provider)."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError, MissingToolError, VerificationError
from build.legalize import legalize
from targets.checks import check_inputs, check_outputs, dim_text, signature_from_json, signature_to_json
from targets.contract import Coverage, Finding, Lowered, LowerRequest, Signature
from targets.diagnosis import Refusal, blame, dtype_findings, mutation_findings, nan_unsafe, op_findings

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array, Runner

REWRITES: tuple[str, ...] = (
    "flat_interface",
    "drop_derived_ranges",
    "float_floor_division",
    "int_division_by_floor",
    "float_remainder_by_fmod",
    "softmax_dtype",
    "mean_dtype",
    "mean_dim_dtype",
    "median_by_sort",
    "cdist_by_difference",
    "cumprod_by_doubling",
    "scatter_as_reduce",
    "scatter_value_as_reduce",
    "unroll_projected_lstm",
    "gather_cropped",
    "avg_pool2d_exact",
    "avg_pool1d_exact",
    "antialiased_bilinear_by_matmul",
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

#: ONNX opset of the artifacts. onnxruntime-web runs up to opset 23 or later since 1.22; 20 is the first with Gelu,
#: bool ReduceMax and 3-d GridSample, and runs on every onnxruntime-web since 1.17.
OPSET = 20

FILE = "model.onnx"
DATA_FILE = "model.onnx.data"

#: a protobuf file ends at 2 GiB; above this many bytes of weights they go to ``model.onnx.data``.
INLINE_LIMIT = 1_900_000_000

METADATA_KEY = "edgeport.signature"

#: weights with fewer elements stay float32 in an fp16 artifact: halving a bias saves nothing and costs accuracy.
HALF_MIN_ELEMENTS = 64

_REFUSED: dict[str, Refusal] = {}

#: ops through which the CPU provider loses NaN, each tried with NaN on ONNX Runtime 1.32: its reductions and pools
#: compare in vectors, its searches order NaN differently.
_NAN_UNSAFE = frozenset(
    f"aten.{op}"
    for op in [
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
        "sign",
        "sgn",
        "argmax",
        "argmin",
        "sort",
        "argsort",
        "topk",
        "median",
    ]
)


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """What the ONNX exporter and ONNX Runtime's CPU kernels cannot take. Needs torch only."""
    return [
        *mutation_findings(program, "ONNX"),
        *dtype_findings(program, signature, {}),
        *op_findings(program, REWRITES, _REFUSED),
    ]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notices (missing torchvision, deprecations, initializer clean-up) off the user's screen."""
    names = ("torch.onnx", "onnxscript", "onnx_ir")
    levels = {n: logging.getLogger(n).level for n in names}
    for n in names:
        logging.getLogger(n).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for n, level in levels.items():
            logging.getLogger(n).setLevel(level)


def _export(program: ExportedProgram, opset: int) -> Any:
    """The program as an onnx ModelProto (weights inside)."""
    import torch

    with _quiet():
        exported = torch.onnx.export(program, (), dynamo=True, opset_version=opset, verbose=False)
        return exported.model_proto


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Export to ONNX with the program's names, and its bounds in the model's metadata.

    fp16 stores weights in half and casts them to float32 when the session starts: the CPU provider (wasm as well)
    has no half kernels for convolution, matrix product or elementwise arithmetic.

    Raises:
        LoweringError: with the op, its source line and the way out.
    """
    if request.precision not in ("fp32", "fp16"):
        raise LoweringError(
            f"ONNX has no recipe for precision '{request.precision}'", op="the program", remedy="Use fp32 or fp16."
        )
    fragile = nan_unsafe(program, _NAN_UNSAFE)
    legal = legalize(program, REWRITES)
    try:
        model = _export(legal, OPSET)
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="the ONNX exporter") from error
    _set_interface(model, request.signature)
    notes = _halve_weights(model) if request.precision == "fp16" else ()
    _strip(model, request)
    files = _save(model, request.directory)
    try:
        session = _session(request.directory / FILE)
    except Exception as error:
        raise blame(legal, error, model=request.model, runtime="ONNX Runtime") from error
    del session
    return Lowered(
        files=files, coverage=_coverage(model), warnings=notes, nan_unsafe=fragile, contract={"opset": OPSET}
    )


def _set_interface(model: Any, signature: Signature) -> None:
    """Give inputs and outputs the program's names and symbols, checking dtypes.

    Raises:
        LoweringError: the exporter lost, added or retyped an input or output.
    """
    graph = model.graph
    counts = (len(graph.input), len(graph.output))
    if counts != (len(signature.inputs), len(signature.outputs)):
        raise LoweringError(
            f"the ONNX exporter made {counts[0]} inputs and {counts[1]} outputs, the program has "
            f"{len(signature.inputs)} and {len(signature.outputs)}",
            op="the program",
            remedy="Return each tensor once, and use each input.",
        )
    pairs = [
        *zip(graph.input, signature.inputs, strict=True),
        *zip(graph.output, signature.outputs, strict=True),
    ]
    _rename(graph, {value.name: spec.name for value, spec in pairs})
    for value, spec in pairs:
        tensor = value.type.tensor_type
        if tensor.elem_type != _element_type(spec.dtype):
            raise LoweringError(
                f"the ONNX exporter made '{spec.name}' element type {tensor.elem_type}, the program's is {spec.dtype}",
                op=f"the tensor '{spec.name}'",
                remedy="Cast it explicitly in the model.",
            )
        del tensor.shape.dim[:]
        for size in spec.shape:
            if isinstance(size, int):
                tensor.shape.dim.add().dim_value = size
            else:
                tensor.shape.dim.add().dim_param = dim_text(size)
        if not spec.shape:
            tensor.shape.SetInParent()


def _element_type(dtype: str) -> int:
    import numpy as np
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _graphs(graph: Any) -> Iterator[Any]:
    """The graph and those nested in its nodes (If, Loop, Scan)."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _rename(graph: Any, wanted: Mapping[str, str]) -> None:
    """Rename values everywhere; a value that happens to have a wanted name gives way."""
    mapping = dict(wanted)
    taken = set(wanted.values())
    for inner in _graphs(graph):
        values = [n for node in inner.node for n in node.output] + [t.name for t in inner.initializer]
        for name in values:
            if name in taken and name not in mapping:
                mapping[name] = f"{name}__inner"
    for inner in _graphs(graph):
        for node in inner.node:
            node.input[:] = [mapping.get(n, n) for n in node.input]
            node.output[:] = [mapping.get(n, n) for n in node.output]
        for named in (*inner.initializer, *inner.value_info, *inner.input, *inner.output):
            named.name = mapping.get(named.name, named.name)


def _halve_weights(model: Any) -> tuple[str, ...]:
    """Store float32 weights in half, each behind a Cast to float32. Those beyond half's range stay as they are."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    kept: list[str] = []
    outputs = {v.name for v in model.graph.output}
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor.name in outputs:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < HALF_MIN_ELEMENTS:
            continue
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.array_equal(np.isfinite(half), np.isfinite(values)):
            kept.append(tensor.name)
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}__half"))
        casts.append(onnx.helper.make_node("Cast", [f"{name}__half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return tuple(f"weight '{name}' stays float32: it has values beyond float16's range" for name in kept)


def _strip(model: Any, request: LowerRequest) -> None:
    """Drop what differs between machines (paths in stack traces) and name nodes by their place; add the signature."""
    model.doc_string = ""
    model.producer_name, model.producer_version = "edgeport", ""
    model.graph.name = re.sub(r"\W", "_", request.model) or "model"
    model.graph.doc_string = ""
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, signature_to_json(request.signature)
    count = 0
    for container in (model.graph, *model.functions):
        for graph in _graphs(container):
            for node in graph.node:
                node.name = f"{node.op_type}__{count}"
                node.doc_string = ""
                del node.metadata_props[:]
                count += 1
            del graph.metadata_props[:]
            del graph.value_info[:]
            for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ())):
                if not isinstance(value, str):
                    value.doc_string = ""
                    del value.metadata_props[:]
            for tensor in getattr(graph, "initializer", ()):
                tensor.doc_string = ""
                del tensor.metadata_props[:]


def _save(model: Any, directory: Path) -> tuple[str, ...]:
    import onnx

    size = sum(len(t.raw_data) for t in model.graph.initializer)
    if size <= INLINE_LIMIT:
        (directory / FILE).write_bytes(model.SerializeToString(deterministic=True))
        return (FILE,)
    onnx.save_model(
        model, directory / FILE, save_as_external_data=True, all_tensors_to_one_file=True, location=DATA_FILE
    )
    return FILE, DATA_FILE


def _session(path: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _coverage(model: Any) -> Coverage:
    """All nodes: a session with the CPU provider alone refuses a node that it has no kernel for."""
    ops: Counter[str] = Counter(node.op_type for graph in _graphs(model.graph) for node in graph.node)
    return Coverage(
        delegated=sum(ops.values()), method="nodes of the ONNX graph; the CPU provider has a kernel for each"
    )


def _declared(session: Any) -> Signature:
    """The signature that a model declares: its own names, dtypes and sizes, with the bounds kept in its metadata.

    Raises:
        VerificationError: the two disagree.
    """
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise VerificationError("the model has no edgeport signature in its metadata")
    kept = signature_from_json(text)
    for ports, specs in ((session.get_inputs(), kept.inputs), (session.get_outputs(), kept.outputs)):
        found = [(p.name, _numpy_name(p.type), [str(s) for s in p.shape]) for p in ports]
        wanted = [(s.name, s.dtype, [dim_text(d) for d in s.shape]) for s in specs]
        if found != wanted:
            raise VerificationError(f"the model declares {found}, its metadata {wanted}")
    return kept


def _numpy_name(onnx_type: str) -> str:
    """``tensor(float)`` -> ``float32``."""
    inner = onnx_type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(inner, inner)


class OrtRunner:
    """A model on ONNX Runtime's CPU provider: the same kernels as the wasm build runs in the page."""

    def __init__(self, session: Any, runtime: str) -> None:
        self.runtime = runtime
        self._session = session
        self._signature = _declared(session)

    def signature(self) -> Signature:
        """As the model declares it."""
        return self._signature

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once."""
        sizes = check_inputs(self._signature, inputs)
        names = [spec.name for spec in self._signature.outputs]
        try:
            values = self._session.run(names, dict(inputs))
        except Exception as error:
            raise VerificationError(f"ONNX Runtime failed on these inputs: {error}") from error
        outputs = dict(zip(names, values, strict=True))
        check_outputs(self._signature, sizes, outputs, self.runtime)
        return outputs


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """Create a session of ONNX Runtime on this host's CPU.

    Raises:
        MissingToolError: ONNX Runtime is not installed.
        VerificationError: the model cannot be loaded, or declares another signature than ``signature``.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise MissingToolError("ONNX Runtime is not installed", remedy="Install the 'ort-web' group.") from error
    try:
        session = _session(directory / lowered_files[0])
    except Exception as error:
        raise VerificationError(f"ONNX Runtime refuses {lowered_files[0]}: {error}") from error
    runner = OrtRunner(session, f"onnxruntime {ort.__version__} (CPU provider, the wasm build's kernels)")
    if runner.signature() != signature:
        raise VerificationError(f"{lowered_files[0]} declares another signature than the program's")
    return runner
