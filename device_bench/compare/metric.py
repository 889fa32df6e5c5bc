"""The task metric of both sides, and whether a device still computes what its host does. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from device_bench.store.rows import Cell
from device_bench.store.text import plain

#: a smaller loss does not matter: one evaluation call in a thousand.
MAX_DROP = 0.001
#: metrics are written with six digits after the point, and subtracted in binary.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What one side says of its accuracy, over all its repeats.

    Attributes:
        judged: whether the outputs of any repeat were compared with PyTorch's.
        metric: name, value, PyTorch's value: of the repeat with the lowest value; None where there is no metric.
        flagged: whether any repeat computed more than rounding otherwise than the host; None: not compared with it.
        why: how, where it did.
    """

    judged: bool
    metric: tuple[str, float, float] | None
    flagged: bool | None
    why: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        metric = dict(zip(("name", "value", "reference"), self.metric, strict=True)) if self.metric else None
        return {"metric": metric, "host_flagged": self.flagged, "host_why": list(self.why)}


def judged(cell: Cell, hosts: Sequence[Mapping[str, Any]]) -> Judged:
    """Of one side.

    Args:
        hosts: ``host`` of those of its measurements that have one.
    """
    metrics = [m.metric for m in cell.good if m.metric is not None]
    return Judged(
        judged=any(m.changed_decisions is not None for m in cell.good),
        metric=min(metrics, key=lambda m: m[1], default=None),
        flagged=any(h["flagged"] for h in hosts) if hosts else None,
        why=tuple(dict.fromkeys(str(w) for h in hosts if h["flagged"] for w in h["why"])),
    )


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Of both sides.

    Attributes:
        max_drop: how much lower B's metric may be, in the metric's unit.
    """

    a: Judged
    b: Judged
    max_drop: float = MAX_DROP

    @property
    def lower(self) -> bool:
        """Whether B's metric is lower than A's by more than may be. Two metrics are not compared with each other."""
        one, two = self.a.metric, self.b.metric
        return bool(one and two and one[0] == two[0] and one[1] - two[1] > self.max_drop + _ROUNDING)

    @property
    def newly_flagged(self) -> bool:
        """Whether B differs from its host by more than rounding, and A does not."""
        return bool(self.b.flagged) and not self.a.flagged

    @property
    def missing(self) -> bool:
        """Whether A's accuracy, or its metric, has nothing in B that it could be compared with."""
        if self.a.judged and not self.b.judged:
            return True
        return self.a.metric is not None and (self.b.metric is None or self.b.metric[0] != self.a.metric[0])

    @property
    def shown(self) -> str:
        """``0.9860 → 0.1000``."""
        one, two = ("-" if side.metric is None else f"{side.metric[1]:.4f}" for side in (self.a, self.b))
        return one if one == two else f"{one} → {two}"

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "lower": self.lower,
            "newly_flagged": self.newly_flagged,
            "missing": self.missing,
        }

    def lines(self) -> list[str]:
        """What is worse in B, missing, or other than in A. Each line is harmless text."""
        one, two = self.a.metric, self.b.metric
        found = []
        if one and two and one[0] == two[0]:
            if self.lower:
                found.append(f"{plain(one[0], 60)} is lower in B: {one[1]:.6g} → {two[1]:.6g} (PyTorch: {two[2]:.6g})")
            if one[2] != two[2]:
                found.append(f"note: PyTorch's {plain(one[0], 60)} {one[2]:.6g} → {two[2]:.6g}")
        elif one and two:
            found.append(f"note: another metric: {plain(one[0], 60)} → {plain(two[0], 60)}, which are not compared")
        elif self.missing:
            found.append(f"note: {'accuracy' if not self.b.judged else 'its metric'} is missing in B")
        if self.newly_flagged:
            why = "; ".join(plain(w, 120) for w in self.b.why[:3])
            found.append(f"it computes otherwise than its host in B{': ' if why else ''}{why}")
        elif self.a.flagged is not None and self.b.flagged is None:
            found.append("note: it was not compared with its host in B")
        return found
