"""How large a call a file is tried with while it is made.

Lowering runs a new file to choose between its forms and to name the op that is wrong. Verification then runs it at
every bound, whatever memory that takes; lowering must not take much more than the converter does.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: The most bytes of one value of the program. Runtimes hold a few such values at once, and PyTorch beside them.
_MOST = 16 * 2**20


def largest_trial(program: ExportedProgram, low: Mapping[str, int], high: Mapping[str, int]) -> dict[str, int]:
    """``high``, or as far from ``low`` towards it that no value of the program takes more than 16 MiB.

    Args:
        program: its values' shapes tell their bytes; those of sizes known only at run time are left out.
        low, high: root symbol -> size. ``low`` is the least that comes back, however large its values are.
    """
    values = list(_bytes(program, frozenset(high)))
    for halvings in range(max(size.bit_length() for size in high.values()) + 1):
        sizes = {symbol: low[symbol] + ((size - low[symbol]) >> halvings) for symbol, size in high.items()}
        if all(_at(dims, sizes) * width <= _MOST for dims, width in values):
            return sizes
    return dict(low)


def _bytes(program: ExportedProgram, symbols: frozenset[str]) -> set[tuple[tuple[Any, ...], int]]:
    """Shape (numbers and sympy expressions of ``symbols``) and bytes per element of each dynamic value."""
    import torch

    found = set()
    for node in program.graph.nodes:
        for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            if not isinstance(value, torch.Tensor):
                continue
            dims = tuple(d.node.expr if isinstance(d, torch.SymInt) else d for d in value.shape)
            free = {str(s) for d in dims for s in getattr(d, "free_symbols", ())}
            if free and free <= symbols:
                found.add((dims, value.element_size()))
    return found


def _at(dims: tuple[Any, ...], sizes: Mapping[str, int]) -> int:
    return prod(d if isinstance(d, int) else int(d.subs({s: sizes[str(s)] for s in d.free_symbols})) for d in dims)
