"""Where OpenVINO's CPU plugin computes something else than PyTorch: NaN, and numbers of 64 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from build.errors import InputError
from build.legalize.bounds import Bounds
from build.legalize.exact_integers import EXACT
from build.program import op_name, op_nodes, source_of
from targets.contract import Finding
from targets.diagnosis import packet
from targets.widths import growing_integers

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array

#: ops whose output differed from PyTorch's when they were given NaN, each tried alone on OpenVINO 2026.4.1 (one x86-64
#: CPU): max, min and exp lose it, sorts order it differently, as a bool it is False. Listed with them without a trial
#: of their own: in-place and underscored twins, and the places that topk and median return (median's values agreed).
NAN_UNSAFE = frozenset(
    f"aten.{op}"
    for op in """
        relu relu_ relu6 hardtanh hardtanh_ hardsigmoid celu clamp clamp_ clamp_min clamp_max maximum minimum
        max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d exp expm1 softmax _softmax log_softmax _log_softmax logsumexp
        scaled_dot_product_attention sort argsort topk median any all logical_and logical_or logical_not
        logical_xor logaddexp
    """.split()  # noqa: SIM905
)

#: integer ops that the plugin computes in float32 and that no rewrite (exact_integers) writes otherwise.
_IN_FLOAT = frozenset(
    f"aten.{op}"
    for op in "matmul mm bmm mv dot addmm baddbmm linear einsum scatter_reduce".split()  # noqa: SIM905
)

_INT32 = range(-(2**31), 2**31)


def wide_integers(program: ExportedProgram) -> list[Finding]:
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


def width_warnings(program: ExportedProgram) -> tuple[str, ...]:
    """Where the CPU plugin's 32-bit integers and floats can differ from the program's 64-bit ones."""
    import torch

    found: dict[str, None] = dict.fromkeys(growing_integers(program))
    bounds = Bounds(program)
    for node in op_nodes(program):
        dtype = getattr(node.meta.get("val"), "dtype", None)
        where = f"{op_name(node)} at {source_of(node) or node.name}"
        if dtype in (torch.int64, torch.int32) and packet(op_name(node)) in _IN_FLOAT:
            small = bounds.of(node)
            if small is None or max(map(abs, small)) > EXACT:
                found[f"{where}: integers computed in float32, wrong beyond 2**24"] = None
        elif dtype is torch.float64:
            found[f"{where}: computed in float32, not float64"] = None
    return tuple(found)


def check_width(inputs: Mapping[str, Array]) -> None:
    """Refuse integers that the CPU plugin would clamp to 32 bits.

    Raises:
        InputError: a value beyond 32 bits.
    """
    for name, array in inputs.items():
        if str(array.dtype) in ("int64", "uint64", "uint32") and array.size:
            lowest, highest = int(array.min()), int(array.max())
            if lowest not in _INT32 or highest not in _INT32:
                raise InputError(
                    f"input '{name}' holds values in {lowest}..{highest}, and OpenVINO's CPU plugin computes integers "
                    "in 32 bits",
                    remedy="Keep them within 32 bits, or compute that part outside the model.",
                )
