"""Pairs of cells, and the verdict on each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from device_bench.compare import alike, decide, metric
from device_bench.compare.change import Change, Samples, changes
from device_bench.compare.decide import Changed
from device_bench.compare.metric import Metrics
from device_bench.compare.sides import Side
from device_bench.statistics import NEEDED
from device_bench.store.rows import Cell, Key

Word = Literal["faster", "slower", "same", "NOISY", "INCOMPARABLE"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a change counts.

    Attributes:
        threshold: the practical one: a smaller change than this does not matter (0.02 for 2 %).
        confidence: the statistical one: of the interval.
        percent: the percentile that is judged: 50 or 95.
        seed: of the intervals' draws.
        max_metric_drop: how much lower B's metric may be, in the metric's unit.
    """

    threshold: float = 0.02
    confidence: float = 0.95
    percent: int = 50
    seed: int = 0
    max_metric_drop: float = metric.MAX_DROP


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What one cell of A and the same cell of B come to.

    Attributes:
        key: of A; its device is empty when two devices are compared.
        reasons: why the word is NOISY or INCOMPARABLE.
        notes: what else differs.
        changes: percentile -> change; empty when INCOMPARABLE.
    """

    key: Key
    a: Cell
    b: Cell
    word: Word
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    changes: dict[int, Change]
    decisions: Changed
    metrics: Metrics

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **self.key.to_json(),
            "verdict": self.word,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "p50": self.changes[50].to_json() if 50 in self.changes else None,
            "p95": self.changes[95].to_json() if 95 in self.changes else None,
            "decisions": self.decisions.to_json(),
            "accuracy": self.metrics.to_json(),
            "a": _cell_json(self.a),
            "b": _cell_json(self.b),
        }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "run": cell.run,
        "device": cell.key.device,
        "repeats": len(cell.good),
        "samples": sum(m.samples for m in cell.good),
        "files": [m.path for m in cell.measurements],
    }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything.

    Attributes:
        new: keys that only B has; ``missing``: that only A has.
    """

    pairs: tuple[Pair, ...]
    new: tuple[Key, ...]
    missing: tuple[Key, ...]


def compare(a: Side, b: Side, rules: Rules) -> Comparison:
    """Every cell that both sides have."""
    two_devices = a.kind == b.kind == "device"
    sides = [{_key(cell, two_devices): cell for cell in side.cells} for side in (a, b)]
    common = sorted(sides[0].keys() & sides[1].keys())
    return Comparison(
        pairs=tuple(_pair(k, a, sides[0][k], b, sides[1][k], rules, two_devices) for k in common),
        new=tuple(sorted(sides[1].keys() - sides[0].keys())),
        missing=tuple(sorted(sides[0].keys() - sides[1].keys())),
    )


def _key(cell: Cell, without_device: bool) -> Key:
    return replace(cell.key, device="") if without_device else cell.key


def _pair(key: Key, a: Side, one: Cell, b: Side, two: Cell, rules: Rules, other_device: bool) -> Pair:
    obstacles = alike.obstacles(one, two, other_device=other_device)
    if a.store.run(one.run).sustained != b.store.run(two.run).sustained:
        obstacles.append("only one of them is a sustained run, which heats the device up")
    decisions = decide.compare(_accuracy(a, one), _accuracy(b, two))
    metrics = Metrics(
        a=metric.judged(one, _hosts(a, one)), b=metric.judged(two, _hosts(b, two)), max_drop=rules.max_metric_drop
    )
    found: dict[int, Change] = {}
    word: Word = "INCOMPARABLE"
    reasons = obstacles
    if not obstacles:
        samples = [_samples(side, cell) for side, cell in ((a, one), (b, two))]
        # Draws differ from cell to cell, and are the same whenever the same cell is compared.
        found = changes(*samples, confidence=rules.confidence, seed=rules.seed + zlib.crc32(key.label.encode()))
        reasons = _noise("A", one, samples[0], rules) + _noise("B", two, samples[1], rules)
        word, why = judge(found.get(rules.percent), rules)
        if reasons:
            word = "NOISY"
        elif word == "NOISY":
            reasons = [why]
    return Pair(
        key=key,
        a=one,
        b=two,
        word=word,
        reasons=tuple(reasons),
        notes=tuple(alike.notes(one, two, other_device=other_device)),
        changes=found,
        decisions=decisions,
        metrics=metrics,
    )


def judge(change: Change | None, rules: Rules) -> tuple[Word, str]:
    """The word for a change, and why it is NOISY.

    ``slower``/``faster``: the whole interval lies on that side of 0, and the change reaches the threshold.
    ``same``: the whole interval lies within the threshold. Otherwise the samples do not tell.
    """
    if change is None:
        return "NOISY", f"fewer than the {NEEDED[rules.percent]} samples that a p{rules.percent} needs"
    threshold = rules.threshold
    if change.low > 0 and change.change >= threshold:
        return "slower", ""
    # As a ratio a speed-up is as far from 1 as the slow-down that undoes it.
    if change.high < 0 and change.change <= 1 / (1 + threshold) - 1:
        return "faster", ""
    if change.low > -threshold and change.high < threshold:
        return "same", ""
    return "NOISY", (
        f"the interval from {change.low:+.1%} to {change.high:+.1%} neither rules out a change of "
        f"{threshold:.1%} nor shows one: measure more repeats"
    )


def _noise(name: str, cell: Cell, samples: Sequence[Samples], rules: Rules) -> list[str]:
    from device_bench.compare import noise

    found = [f"{name}: {doubt}" for doubt in cell.doubts if not doubt.startswith("the device was charging")]
    for measurement, one in zip(cell.good, samples, strict=True):
        jump = noise.modes(one, max(rules.threshold, 0.001))
        if jump is not None:
            found.append(
                f"{name}: repeat {measurement.repeat} jumps between two levels, "
                f"{jump[0] / 1e6:.3f} and {jump[1] / 1e6:.3f} ms"
            )
        slope = noise.drift(one)
        if slope is not None and not any("throttled" in d for d in measurement.doubts):
            found.append(f"{name}: repeat {measurement.repeat} drifts by {slope:+.0%} from start to end")
    return found


def _samples(side: Side, cell: Cell) -> list[Samples]:
    import numpy as np

    return [np.array(side.store.samples(m), dtype=np.int64) for m in cell.good]


def _accuracy(side: Side, cell: Cell) -> dict[str, Any] | None:
    at = decide.judged(cell)
    found: dict[str, Any] | None = None if at is None else side.store.document(cell.measurements[at])["accuracy"]
    return found


def _hosts(side: Side, cell: Cell) -> list[dict[str, Any]]:
    return [side.store.document(m)["host"] for m in cell.good if m.host_identical is not None]
