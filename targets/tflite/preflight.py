"""What LiteRT cannot take, told from the program alone, before the toolchain is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from build.legalize import REGISTRY
from build.program import op_name, op_nodes, source_of
from targets.contract import DynamicDim, Finding, Signature
from targets.tflite.convert import functional
from targets.tflite.flatbuffer import DTYPES

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: dtypes a tensor of the program may have; the converter widens half types, and has no kernels for the others.
_COMPUTED = frozenset({"float32", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"})
_RANDOM = (
    "aten.rand",
    "aten.normal",
    "aten.bernoulli",
    "aten.multinomial",
    "aten.native_dropout",
    "aten.exponential",
    "aten.uniform",
    "aten.poisson",
    "aten.randperm",
)
_LOOPS = frozenset({"cond", "while_loop", "scan", "map_impl", "associative_scan"})
#: Prefixes of ops that litert-torch has no lowering for and that no rewrite expresses.
_MISSING = (
    "aten.linalg_",
    "aten._linalg_",
    "aten.fft_",
    "aten._fft_",
    "aten.stft",
    "aten.istft",
    "aten._cdist_backward",
)
#: Members of those families that it does take.
_TAKEN = ("aten.linalg_vector_norm", "aten.linalg_norm", "aten.linalg_matrix_norm", "aten.linalg_cross")
#: Where ops come from that litert-torch knows.
_NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "higher_order", "profiler"})
_ELSEWHERE = "Compute it outside the program, or choose another target."


def inspect(program: ExportedProgram, signature: Signature, rewrites: Sequence[str]) -> list[Finding]:
    """Findings in the order inputs, ops, state, dimensions."""
    return [
        *_interface(signature),
        *_ops(program, rewrites),
        *_state(program),
        *_dims(signature),
    ]


def _interface(signature: Signature) -> Iterator[Finding]:
    for spec in (*signature.inputs, *signature.outputs):
        if spec.dtype not in DTYPES or spec.dtype not in _COMPUTED:
            yield Finding(
                subject=spec.dtype,
                kind="dtype",
                verdict="refused",
                why=f"'{spec.name}' is {spec.dtype}, which LiteRT's kernels do not compute in",
                source=f"input or output '{spec.name}'",
                remedy="Use float32 (or float16, or integers up to 64 bits) at the program's boundary.",
            )


def _ops(program: ExportedProgram, rewrites: Sequence[str]) -> Iterator[Finding]:
    faults = {op: REGISTRY[name].fault for name in rewrites if name in REGISTRY for op in REGISTRY[name].ops}
    told: set[str] = set()
    for node in op_nodes(program):
        name = op_name(node)
        why, remedy = _refusal(node, name, rewritten=name in faults)
        if why:
            yield Finding(subject=name, kind="op", verdict="refused", why=why, source=source_of(node), remedy=remedy)
        elif name in faults and name not in told:
            told.add(name)
            yield Finding(subject=name, kind="op", verdict="rewritten", why=faults[name], source=source_of(node))


def _refusal(node: Any, name: str, *, rewritten: bool) -> tuple[str, str]:
    """Why the op cannot be taken, and the way out; empty strings when it can.

    Args:
        rewritten: a rewrite is there for it: it may come from any library.
    """
    for value in _tensors(node.meta.get("val")):
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _COMPUTED:
            why = f"LiteRT has no {dtype} kernels"
            if dtype == "float64":
                return why, "Compute in float32: cast with .float(), and build constants with dtype=torch.float32."
            return why, _ELSEWHERE
        if any(_unbacked(size) for size in value.shape):
            return "the size of its result depends on values, not on shapes", (
                "Use a form with a fixed size (a mask and torch.where instead of indexing)."
            )
    if name.startswith(("aten._local_scalar_dense", "aten.item")):
        return "it turns a tensor's value into a number that steers the program", "Keep the value a tensor."
    if name.startswith(_RANDOM):
        return "LiteRT has no random numbers that equal PyTorch's", (
            "Export in eval mode (no dropout), or make the random tensor an input."
        )
    if name in _LOOPS or name.split(".")[-1] in _LOOPS:
        return "control flow that depends on values is not converted", "Compute both branches and use torch.where."
    if not rewritten and getattr(node.target, "namespace", "aten") not in _NAMESPACES:
        return "a custom op has no meaning outside its own library", (
            "Replace it by PyTorch's ops, or register a decomposition for it before export."
        )
    if name.startswith(_MISSING) and not name.startswith(_TAKEN):
        return "litert-torch has no such op", _ELSEWHERE
    return "", ""


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _unbacked(size: Any) -> bool:
    if isinstance(size, int):
        return False
    return any(str(s).startswith("u") for s in size.node.expr.free_symbols)


def _state(program: ExportedProgram) -> Iterator[Finding]:
    """State that outlives a call: a ``.tflite`` made by litert-torch forgets it, so it is refused where it matters."""
    program = functional(program)
    for name, node in stateful_buffers(program).items():
        writer = _writer(program, name)
        yield Finding(
            subject=f"buffer '{name}'",
            kind="program",
            verdict="refused",
            why="the program changes it and reads it in the next call, and LiteRT keeps no state between calls",
            source=source_of(writer) if writer is not None else source_of(node),
            remedy="Make the state explicit: take it as an input and return its new value.",
        )


def stateful_buffers(program: ExportedProgram) -> dict[str, Any]:
    """Buffers that are changed and that some output depends on: name -> placeholder."""
    program = functional(program)
    signature = program.graph_signature
    changed = {s.target for s in signature.output_specs if s.kind.name == "BUFFER_MUTATION"}
    outputs = next(n for n in program.graph.nodes if n.op == "output").args[0]
    needed: set[Any] = set()
    queue = [
        a
        for a, s in zip(outputs, signature.output_specs, strict=True)
        if s.kind.name == "USER_OUTPUT" and hasattr(a, "all_input_nodes")
    ]
    while queue:
        node = queue.pop()
        if node not in needed:
            needed.add(node)
            queue.extend(node.all_input_nodes)
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    found = {}
    for spec in signature.input_specs:
        node = placeholders.get(getattr(spec.arg, "name", ""))
        if spec.target in changed and node in needed:
            found[str(spec.target)] = node
    return found


def _writer(program: ExportedProgram, buffer: str) -> Any:
    outputs = next(n for n in program.graph.nodes if n.op == "output").args[0]
    for value, spec in zip(outputs, program.graph_signature.output_specs, strict=True):
        if spec.target == buffer and hasattr(value, "meta"):
            return value
    return None


def _dims(signature: Signature) -> Iterator[Finding]:
    for spec in signature.inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, DynamicDim):
                yield Finding(
                    subject=f"{spec.name}[{axis}]: {dim.lo}..{'' if dim.hi is None else dim.hi}",
                    kind="dim",
                    verdict="rewritten",
                    why="litert-torch's own dynamic dimensions break reshapes and broadcasts: converted at several "
                    "sizes, and the differences computed at run time",
                )
