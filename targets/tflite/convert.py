"""Conversion at fixed sizes: specialise the program, legalise it, call litert-torch, explain its failures."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from build.legalize.core import legalize
from build.legalize.marks import name_in
from build.program import is_torchs, op_name, op_nodes, source_of, user_outputs
from targets.contract import DynamicDim, Signature, shape_at
from targets.diagnosis import packet
from targets.tflite.blame import node_named

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Sizes = Mapping[str, int]

# litert-torch reads it when it is imported, by whomever: no progress bars in the log.
os.environ.setdefault("LITERT_TORCH_SHOW_PROGRESS", "n")

#: the converter's words for ops that the runtime lacks, under TensorFlow's names
_KERNELS = re.compile(r"TF Select ops: (.+)")
_REMEDY = "Replace this op in the model, or choose another target for it."


@dataclass(frozen=True, kw_only=True)
class _ConverterSignature:
    """What litert-torch reads of its own ``Signature``: the name, and names for the flat inputs."""

    name: str
    flat_arg_names: list[str]


def is_dynamic(signature: Signature) -> bool:
    """Whether any input has a dimension chosen at run time."""
    return any(isinstance(d, DynamicDim) for s in signature.inputs for d in s.shape)


def specialise(program: ExportedProgram, signature: Signature, sizes: Sizes) -> ExportedProgram:
    """The program at fixed sizes: the same computation with every dimension a plain number.

    Its inputs and outputs are flat tuples of tensors in the program's order.

    Raises:
        LoweringError: the program itself cannot be traced at these sizes.
    """
    import torch
    from torch.fx.traceback import preserve_node_meta

    module = program.module(check_guards=False)

    halves = (torch.float16, torch.bfloat16)

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in halves:
            return value.to(torch.float32)
        return torch.float32 if value in halves else value

    class Widening(torch.fx.Interpreter):
        """Runs the program's nodes; what it computes in half precision is computed in float32, which LiteRT has."""

        def fetch_attr(self, target: str) -> Any:
            return wide(super().fetch_attr(target))

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is torch.ops.aten.detach_.default:  # of a constant made in forward: torch refuses it for views
                return args[0]
            args, kwargs = torch.utils._pytree.tree_map(wide, (args, kwargs))
            return super().call_function(target, args, kwargs)

    returned = [v.meta["val"].dtype for v in user_outputs(program) if hasattr(v, "meta")]

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = module

        def forward(self, *tensors: Any) -> Any:
            # Interpreted with its metadata kept, so that the new program remembers the user's source lines.
            with preserve_node_meta():
                out = Widening(self.program).run(*map(wide, tensors), enable_io_processing=False)
            found = [v for v in out if isinstance(v, torch.Tensor)]
            return tuple(v.to(dtype) for v, dtype in zip(found, returned, strict=True))

    # The converter names tensors after the module's class.
    Flat.__module__, Flat.__qualname__ = "edgeport", "Program"
    args = tuple(torch.zeros(shape_at(s.shape, sizes), dtype=getattr(torch, s.dtype)) for s in signature.inputs)
    try:
        with torch.no_grad():
            return torch.export.export(Flat(), args, strict=False)
    except Exception as error:
        raise LoweringError(
            f"the program cannot be traced at sizes {dict(sizes)}: {_first_line(error)}",
            op=_op_in(str(error)),
            source=_source_in(str(error)),
            remedy="Narrow the dynamic range to sizes at which the model runs, or fix the model.",
        ) from error


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program with changes in place written as results, where it has any: rewrites look for plain ops."""
    if not any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in op_nodes(program)):
        return program
    return legalize(program, ["drop_derived_ranges"]).run_decompositions({})


def to_flatbuffer(
    programs: Mapping[str, ExportedProgram], signature: Signature, rewrites: Sequence[str], *, wide: bool
) -> bytes:
    """Convert static programs, one signature each.

    Args:
        programs: signature key -> program as :func:`specialise` made it.
        signature: for the number of inputs.
        rewrites: names of the rewrites applied first.
        wide: keep 64-bit integers; otherwise they become 32-bit.

    Raises:
        LoweringError: with the op and the source line that the converter stopped at.
    """
    legal = {key: legalize(functional(p), rewrites) for key, p in programs.items()}
    try:
        with _quiet(), _constants_kept():
            return _convert(legal, len(signature.inputs), wide)
    except Exception as error:
        raise _explained(error, legal) from error


def _convert(programs: Mapping[str, ExportedProgram], arity: int, wide: bool) -> bytes:
    from litert_torch import fx_infra
    from litert_torch._convert import core, litert_converter

    lowered = []
    for program in programs.values():
        # The steps of litert_torch.convert() from the exported program on; it takes only modules itself.
        step = fx_infra.graph_utils.reset_from_node_meta(program)
        step = fx_infra.safe_run_decompositions(step, fx_infra.decomp.pre_convert_decomp(), can_skip=False)
        step = core._run_convert_passes(step)
        _name_after_nodes(step)
        lowered.append(step)
    names = [f"input_{i}" for i in range(arity)]
    signatures = [_ConverterSignature(name=key, flat_arg_names=names) for key in programs]
    exporter = litert_converter.exported_programs_to_flatbuffer(
        lowered, signatures, enable_x64=wide, quant_config=_static_mode()
    )
    return bytes(exporter.to_bytes())


def _static_mode() -> Any:
    """How quantize and dequantize ops are read: as integer kernels. Without any such op it changes nothing."""
    from types import SimpleNamespace

    from litert_torch.quantize.quant_config import QuantConfig

    return SimpleNamespace(_quantizer_mode=QuantConfig._QuantizerMode.PT2E_STATIC)


def _name_after_nodes(program: ExportedProgram) -> None:
    """Let the converter name tensors after the program's nodes: it takes the module hierarchy for names."""
    for node in program.graph.nodes:
        name = name_in(node.meta.get("stack_trace"))
        node.meta["nn_module_stack"] = {"node": ("", name or "edgeport")}


@contextlib.contextmanager
def _constants_kept() -> Iterator[None]:
    """Keep every constant alive until the conversion ends.

    litert-torch knows a constant that it has seen by the address of its contiguous copy, and drops that copy at once.
    The next constant of the same shape may get the same address, and then silently takes the first one's values
    (EfficientNet's 1x1 convolutions swap weights, another pair on each run).
    """
    from litert_torch.backend import inline_consts

    fingerprint = inline_consts._ConstantFingerprint
    original = fingerprint.from_tensor
    kept: list[Any] = []

    def from_tensor(tensor: Any) -> Any:
        kept.append(tensor)
        return original(tensor)

    fingerprint.from_tensor = staticmethod(from_tensor)
    try:
        yield
    finally:
        fingerprint.from_tensor = original


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converter's estimates and deprecation notes out of the user's log."""
    import logging
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _op_in(message: str) -> str | None:
    found = re.search(r"torch\.ops\.(\w+\.\w+\.\w+)", message) or re.search(r"\b(aten\.\w+\.\w+)", message)
    return found.group(1) if found else None


def _source_in(message: str) -> str | None:
    if 'File "' in message:
        found = source_of(SimpleNamespace(meta={"stack_trace": message}))
        if found:
            return found
    located = re.search(r"([\w./-]+\.py):(\d+):\d+: error", message)
    if located is None or is_torchs(located.group(1)):
        return None
    return f"{os.path.basename(located.group(1))}:{located.group(2)}"


def _explained(error: Exception, programs: Mapping[str, ExportedProgram]) -> LoweringError:
    """The converter's exception as one that names op, shape, source line and remedy."""
    message = str(error)
    op, source, shape = _op_in(message), _source_in(message), ""
    node = _node_in(message, programs)
    if node is not None:
        op = op or op_name(node)
        source = source_of(node) or source
        value = node.meta.get("val")
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    what = re.search(r"error: (.+)", message)
    kernels = _KERNELS.search(message)
    reason = what.group(1)[:300] if what else _first_line(error)
    if kernels is not None:
        reason = f"the runtime has no kernel {kernels[1]}"
    return LoweringError(
        f"litert-torch cannot convert {op or 'the program'}{shape}: {reason}",
        op=op or "litert-torch converter",
        source=source,
        remedy=_REMEDY,
    )


def _node_in(message: str, programs: Mapping[str, ExportedProgram]) -> Any:
    """The node of ours that the converter was at: ``While executing %NAME``, or the MLIR location's names or line."""
    named = re.search(r"While executing %(\w+)", message) or re.search(r'loc\("([\w;]+)"', message)
    located = re.search(r"([\w./-]+\.py):(\d+):\d+: error", message)
    kernels = _KERNELS.search(message)
    for program in programs.values():
        if kernels is not None:
            return _node_of_kernel(program, kernels[1].lower().split(", "))
        node = node_named(program, named.group(1).split(";")) if named is not None else None
        if node is None and located is not None:
            line = f'{located.group(1)}", line {located.group(2)},'
            node = _one_of([n for n in op_nodes(program) if line in (n.meta.get("stack_trace") or "")], message)
        if node is not None:
            return node
    return None


def _node_of_kernel(program: ExportedProgram, kernels: Sequence[str]) -> Any:
    """The first op that one of TensorFlow's kernels (``bitwiseand``) stands for."""
    for node in op_nodes(program):
        name = packet(op_name(node)).rpartition(".")[2].strip("_").replace("_", "")
        if any(kernel.endswith(name) for kernel in kernels):
            return node
    return None


def _one_of(nodes: Sequence[Any], message: str) -> Any:
    """Of the ops of one line, the one that the converter's ``operation 'tfl.batch_matmul' … -> tensor<2x3xf32>`` means.

    The line may be torch's own, which every layer of a kind has passed. The converter moves channels, so sizes are
    compared in any order.
    """
    operation = re.search(r"operation '\w+\.(\w+)'", message)
    if operation is not None:
        said = "conv_transpose1d conv_transpose2d conv1d conv2d conv3d" if "convol" in operation[1] else operation[1]
        nodes = [n for n in nodes if packet(op_name(n)).rpartition(".")[2].strip("_") in said] or nodes
    result = re.search(r"-> tensor<((?:\d+x)+)\w+>", message)
    if result is not None:
        sizes = sorted(int(size) for size in result[1].split("x")[:-1])
        nodes = [n for n in nodes if sorted(getattr(n.meta.get("val"), "shape", ())) == sizes] or nodes
    return nodes[0] if len({op_name(n) for n in nodes}) == 1 else None
