"""Integers of 64 bits on runtimes that compute them in 32: which ops can leave the range although operands fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.legalize.bounds import Bounds
from build.program import op_name, op_nodes, source_of
from targets.diagnosis import packet

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: products, sums of many, shifts. A sum or difference of two is left out: programs add positions all the time.
_GROWING = frozenset(
    f"aten.{op}"
    for op in """
        mul pow cumsum cumprod prod sum matmul mm bmm mv dot addmm baddbmm __lshift__ bitwise_left_shift square
    """.split()  # noqa: SIM905
)


def growing_integers(program: ExportedProgram) -> tuple[str, ...]:
    """One line for each integer op whose result is not known to stay within 32 bits."""
    import torch

    bounds = Bounds(program)
    found: dict[str, None] = {}
    for node in op_nodes(program):
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if dtype is torch.int64 and packet(op_name(node)) in _GROWING and not bounds.within(node, 2**31):
            where = f"{op_name(node)} at {source_of(node) or node.name}"
            found[f"{where}: computed in 32-bit integers, wrong beyond 2**31"] = None
    return tuple(found)
