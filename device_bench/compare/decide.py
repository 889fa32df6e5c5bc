"""The decisions that an artifact makes otherwise than PyTorch: which are new in B, which are gone. Standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from device_bench.store.rows import Cell
from device_bench.store.text import plain


@dataclass(frozen=True, kw_only=True)
class Changed:
    """Changed decisions of both sides; near-ties, which rounding alone decides, are not among them.

    Attributes:
        a, b: how many each side has; None where accuracy was not judged.
        new: ``{"call", "row", "before", "after"}``: in B and not in A. The lab lists the first 50 of each side, so
            these may be fewer than ``b - a``.
        gone: in A and not in B.
    """

    a: int | None
    b: int | None
    new: tuple[Mapping[str, Any], ...] = ()
    gone: tuple[Mapping[str, Any], ...] = ()

    @property
    def more(self) -> int:
        """How many more B changes than A, at least; 0 when it is not known."""
        if self.a is None or self.b is None:
            return 0
        return max(len(self.new), self.b - self.a)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"a": self.a, "b": self.b, "new": list(self.new), "gone": list(self.gone)}

    def lines(self) -> list[str]:
        """One line for each that is new or gone."""
        return [f"decision {_name(d)} is new in B" for d in self.new] + [
            f"decision {_name(d)} is no longer changed in B" for d in self.gone
        ]


def _name(decision: Mapping[str, Any]) -> str:
    where = f"{plain(decision['call'], 60)}[{decision['row']}]"
    return f"{where}: {decision['before']} in PyTorch, {decision['after']} here"


def compare(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Changed:
    """From the ``accuracy`` of a measurement of each side."""
    if not a or not b:
        return Changed(a=a["changed_decisions"] if a else None, b=b["changed_decisions"] if b else None)
    one, two = _listed(a), _listed(b)
    return Changed(
        a=a["changed_decisions"],
        b=b["changed_decisions"],
        new=tuple(two[k] for k in two if k not in one),
        gone=tuple(one[k] for k in one if k not in two) if len(two) == b["changed_decisions"] else (),
    )


def judged(cell: Cell) -> int | None:
    """The place of the repeat that was judged and has the most changed decisions; of equal ones the first."""
    counts = {
        i: m.changed_decisions for i, m in enumerate(cell.measurements) if m.ok and m.changed_decisions is not None
    }
    return max(counts, key=lambda i: counts[i], default=None)


def _listed(accuracy: Mapping[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {
        (d["call"], d["row"], d["after"]): {k: d[k] for k in ("call", "row", "before", "after")}
        for d in accuracy["changed"]
        if not d["tie"]
    }
