"""At which sizes a program is verified: its example, every bound, and sizes never used for export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from targets.contract import DynamicDim, Signature

#: The size never used for export that is tried first: odd, so it exposes padding to even sizes, and prime.
_UNSEEN = 7
#: Where a dimension has no maximum, we still try something larger than the example.
_BEYOND_EXAMPLE = 64


@dataclass(frozen=True, kw_only=True)
class SizePoint:
    """Root symbol -> size, and why this point is tried (see ``CallRecord.kind``)."""

    kind: str
    sizes: Mapping[str, int]


def example_sizes(signature: Signature, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Root sizes of concrete input shapes (by input name)."""
    found: dict[str, int] = {}
    for spec in signature.inputs:
        for dim, size in zip(spec.shape, shapes[spec.name], strict=True):
            if isinstance(dim, DynamicDim):
                found[dim.symbol] = (size - dim.offset) // dim.scale
    return found


def _unseen(lo: int, hi: int, example: int | None) -> int:
    taken = {lo, hi, example}
    for size in (_UNSEEN, (lo + hi) // 2, (lo + hi) // 2 + 1, lo + 1, hi - 1):
        if lo <= size <= hi and size not in taken:
            return size
    return lo if example != lo else hi


def size_points(
    signature: Signature, example: Mapping[str, int], named: Mapping[str, Sequence[int]] | None = None
) -> list[SizePoint]:
    """Points to verify at, without repetition; the example's own sizes are not among them.

    Args:
        example: root symbol -> size at export.
        named: root symbol -> further sizes that the model asks for.
    """
    bounds = {
        s: (lo, max(_BEYOND_EXAMPLE, 2 * example.get(s, 1)) if hi is None else hi)
        for s, (lo, hi) in signature.dynamic_symbols.items()
    }
    if not bounds:
        return []
    middle = {s: _unseen(lo, hi, example.get(s)) for s, (lo, hi) in bounds.items()}
    points = [
        SizePoint(kind="lower", sizes={s: lo for s, (lo, _) in bounds.items()}),
        SizePoint(kind="upper", sizes={s: hi for s, (_, hi) in bounds.items()}),
        SizePoint(kind="unseen", sizes=middle),
    ]
    if len(bounds) > 1:
        for chosen in bounds:
            points.append(
                SizePoint(kind="mixed", sizes={s: hi if s == chosen else lo for s, (lo, hi) in bounds.items()})
            )
    for symbol, sizes in (named or {}).items():
        points += [SizePoint(kind="named", sizes={**middle, symbol: size}) for size in sizes]
    unique: dict[tuple[tuple[str, int], ...], SizePoint] = {}
    for point in points:
        unique.setdefault(tuple(sorted(point.sizes.items())), point)
    unique.pop(tuple(sorted(example.items())), None)
    return list(unique.values())
