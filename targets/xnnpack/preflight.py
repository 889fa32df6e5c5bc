"""What ExecuTorch cannot take, said before any conversion. Needs torch only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from build.legalize import REGISTRY
from build.program import op_name, op_nodes, source_of, torch_dtype_name, user_inputs
from targets.contract import DynamicDim, Finding, Signature

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: dtypes that both the file format and the portable kernels have.
DTYPES = frozenset(("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"))

#: Ops that draw random numbers: no two runs agree, so nothing can be verified.
_RANDOM = frozenset(
    (
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "normal_functional", "uniform", "uniform_"),
        *("exponential", "exponential_", "poisson", "rrelu_with_noise", "rrelu_with_noise_functional"),
    )
)
#: Random only when their ``train`` argument (position 2) is true.
_DROPOUT = frozenset(("dropout", "dropout_", "alpha_dropout", "feature_dropout", "native_dropout"))

_EXPORT_EVAL = "Call model.eval() before export."
_PASS_NOISE = "Draw the numbers outside and pass them as an input."

#: Ops without a kernel and without a rewrite, and what to do instead.
_NO_KERNEL = {
    "conv_transpose3d": "Write it as transposed convolutions of planes, or choose another target for this model.",
    "linalg_inv": "Invert the matrix before export, or solve in the program with products.",
    "linalg_inv_ex": "Invert the matrix before export, or solve in the program with products.",
}


def _packet(node: Node) -> str:
    return op_name(node).split(".")[1] if op_name(node).count(".") >= 2 else op_name(node)


def _values(node: Node) -> list[Any]:
    import torch

    leaves: list[Any] = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return leaves


def _is_random(node: Node) -> bool:
    name = _packet(node)
    if name in _RANDOM:
        return True
    if name not in _DROPOUT or len(node.args) < 3:
        return False
    return bool(node.args[2]) and float(node.args[1] or 0) > 0


def _is_data_dependent(node: Node) -> bool:
    """A size of the result depends on values, not on sizes (torch calls such a symbol unbacked)."""
    import torch
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for value in _values(node):
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        if any(isinstance(s, torch.SymInt) and free_unbacked_symbols(s) for s in sizes):
            return True
    return False


def _refused_op(node: Node, why: str, remedy: str) -> Finding:
    source = source_of(node) or f"node '{node.name}'"
    return Finding(subject=op_name(node), kind="op", verdict="refused", why=why, source=source, remedy=remedy)


def _dims(signature: Signature) -> Iterator[Finding]:
    for spec in signature.inputs:
        for axis, dim in enumerate(spec.shape):
            if not isinstance(dim, DynamicDim):
                continue
            subject = f"dimension {axis} of input '{spec.name}'"
            if dim.hi is None:
                yield Finding(
                    subject=subject,
                    kind="dim",
                    verdict="refused",
                    why="it has no maximum, and ExecuTorch plans its memory for the largest size: it would quietly "
                    "keep the example's size as the largest",
                    source=f"input '{spec.name}'",
                    remedy=f"Export with a bound: dynamic_shapes={{'{spec.name}': {{{axis}: Dim('n', max=...)}}}}.",
                )
            else:
                yield Finding(subject=subject, kind="dim", verdict="fine")


def _dtypes(program: ExportedProgram) -> Iterator[Finding]:
    import torch

    seen: dict[str, tuple[Node, bool]] = {}
    for node in [*user_inputs(program), *op_nodes(program)]:
        for value in _values(node):
            if isinstance(value, torch.Tensor):
                seen.setdefault(torch_dtype_name(value.dtype), (node, node.op == "placeholder"))
    for name, (node, is_input) in sorted(seen.items()):
        if name in DTYPES:
            yield Finding(subject=name, kind="dtype", verdict="fine")
            continue
        remedy = "Pass real and imaginary parts as two real tensors, and write the arithmetic out."
        if not name.startswith("complex"):
            remedy = "Cast to float32 (x.float()) before export."
        yield Finding(
            subject=name,
            kind="dtype",
            verdict="refused",
            why=f"ExecuTorch's kernels have no {name}",
            source=f"input '{node.name}'" if is_input else (source_of(node) or op_name(node)),
            remedy=remedy,
        )


def _ops(program: ExportedProgram, rewrites: list[str]) -> Iterator[Finding]:
    rewritten = {op: name for name in rewrites if name in REGISTRY for op in REGISTRY[name].ops}
    seen: set[str] = set()
    for node in op_nodes(program):
        name = op_name(node)
        if _is_random(node):
            remedy = _EXPORT_EVAL if _packet(node) in _DROPOUT else _PASS_NOISE
            yield _refused_op(node, "it draws random numbers, so no run can be compared with PyTorch", remedy)
        elif _is_data_dependent(node):
            yield _refused_op(
                node,
                "the size of its result depends on the values of its input, and ExecuTorch returns wrong sizes for it",
                "Keep the size fixed: mask with torch.where instead of selecting elements.",
            )
        elif _packet(node) in _NO_KERNEL:
            yield _refused_op(node, "ExecuTorch has no kernel for it", _NO_KERNEL[_packet(node)])
        elif name not in seen and "." in name:
            why = f"{rewritten[name]}: {REGISTRY[rewritten[name]].fault}" if name in rewritten else ""
            yield Finding(subject=name, kind="op", verdict="rewritten" if why else "fine", why=why)
        seen.add(name)


def _side_effects(program: ExportedProgram) -> Iterator[Finding]:
    for spec in program.graph_signature.output_specs:
        if spec.kind.name == "USER_INPUT_MUTATION":
            yield Finding(
                subject=f"input '{spec.target}'",
                kind="program",
                verdict="rewritten",
                why="forward changes it in place: the outputs use the new value, the caller's array stays as it was",
            )


def findings(program: ExportedProgram, signature: Signature, rewrites: list[str]) -> list[Finding]:
    """The pre-flight matrix, refusals first."""
    rows = [*_dims(signature), *_dtypes(program), *_ops(program, rewrites), *_side_effects(program)]
    return sorted(rows, key=lambda f: f.verdict != "refused")
