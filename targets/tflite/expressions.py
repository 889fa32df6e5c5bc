"""Sizes as expressions: which function of the program's symbols gives the numbers seen at several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.tflite.convert import Sizes

#: Expressions longer than this are not tried: no model computes a size that way, and fitting them is slow.
_MAX_OPERATIONS = 12


def candidates(program: ExportedProgram, symbols: Sequence[str]) -> list[Any]:
    """Sizes worth trying, simplest first: the symbols, their products, and every size the program itself computes."""
    import sympy
    import torch

    roots = [sympy.Symbol(s) for s in symbols]
    found: dict[str, Any] = {}
    for count in range(1, len(roots) + 1):
        for group in combinations(roots, count):
            product = sympy.Mul(*group)
            found[str(product)] = product
    names = set(symbols)
    seen: dict[str, Any] = {}
    for node in program.graph.nodes:
        for value in _sizes_of(node.meta.get("val")):
            if isinstance(value, torch.SymInt):
                expr = value.node.expr
                if expr.free_symbols and {str(s) for s in expr.free_symbols} <= names:
                    plain = expr.xreplace({s: sympy.Symbol(str(s)) for s in expr.free_symbols})
                    seen[str(plain)] = plain
    for text, expr in sorted(seen.items(), key=lambda item: (sympy.count_ops(item[1]), item[0])):
        if sympy.count_ops(expr) <= _MAX_OPERATIONS:
            found.setdefault(text, expr)
    return list(found.values())


def _sizes_of(value: Any) -> Iterable[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield from value.shape
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _sizes_of(item)
    else:
        yield value


def evaluate(expr: Any, sizes: Sizes) -> int:
    """The expression's value at the given sizes."""
    import sympy

    if isinstance(expr, int):
        return expr
    return int(expr.subs({sympy.Symbol(k): v for k, v in sizes.items()}))


class Fitter:
    """Finds expressions for numbers seen at the same list of points.

    Args:
        points: sizes of the symbols, one mapping for each conversion.
        expressions: candidates, simplest first.
        largest: upper bounds of the symbols; None when one has no maximum.
    """

    def __init__(self, points: Sequence[Sizes], expressions: Sequence[Any], largest: Sizes | None = None) -> None:
        self.points = list(points)
        self.largest = largest
        self._table = [(e, [evaluate(e, p) for p in self.points]) for e in expressions]
        self._known: dict[tuple[int, ...], Any] = {}

    def fit(self, values: Sequence[int]) -> Any | None:
        """A number, a sympy expression, or None when no candidate gives these values at the points."""
        key = tuple(int(v) for v in values)
        if len(set(key)) == 1:
            return key[0]
        if key not in self._known:
            self._known[key] = self._multiple(key) or self._affine(key) or self._sum(key)
        return self._known[key]

    def _multiple(self, values: tuple[int, ...]) -> Any | None:
        """``c * E``."""
        for expr, at in self._table:
            if at[0] and values[0] % at[0] == 0:
                c = values[0] // at[0]
                if all(v == c * a for v, a in zip(values, at, strict=True)):
                    return c * expr
        return None

    def _affine(self, values: tuple[int, ...]) -> Any | None:
        """``c * E + d``."""
        for expr, at in self._table:
            line = _line(values, at)
            if line is not None:
                return line[0] * expr + line[1]
        return None

    def _sum(self, values: tuple[int, ...]) -> Any | None:
        """``c1 * E1 + c2 * E2 + d``; only where there are more points than unknowns."""
        if len(self.points) < 4:
            return None
        for (e1, a1), (e2, a2) in permutations(self._table, 2):
            for c in (1, -1, 2, -2):
                rest = tuple(v - c * a for v, a in zip(values, a1, strict=True))
                line = _line(rest, a2)
                if line is not None:
                    return c * e1 + line[0] * e2 + line[1]
        return None


def _line(values: Sequence[int], at: Sequence[int]) -> tuple[int, int] | None:
    """Whole numbers ``(c, d)`` with ``values == c * at + d``."""
    pairs = list(zip(at, values, strict=True))
    other = next((p for p in pairs if p[0] != pairs[0][0]), None)
    if other is None:
        return None
    c, rest = divmod(other[1] - pairs[0][1], other[0] - pairs[0][0])
    d = pairs[0][1] - c * pairs[0][0]
    if rest or c == 0 or any(v != c * a + d for a, v in pairs):
        return None
    return c, d
