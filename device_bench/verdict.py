"""PASS, FAIL or INCONCLUSIVE, with the reasons: all repeats of one artifact on one device against a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from device_bench.advice import throttled
from device_bench.statistics import NEEDED, summarise

Word = Literal["PASS", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a measurement counts.

    Attributes:
        max_spread: largest distance between the repeats' p95, over their median.
        allow_charging: whether a device on a charger may pass.
    """

    max_spread: float = 0.15
    allow_charging: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the repeats come to.

    Attributes:
        word: None when no limit is set.
        reasons: for FAIL, the limits that are broken; for INCONCLUSIVE, why the measurement does not count.
        p95_ms: the largest of the repeats' p95; ``p50_ms`` and ``peak_mb`` likewise. None: nothing was measured.
    """

    word: Word | None
    reasons: tuple[str, ...]
    p50_ms: float | None
    p95_ms: float | None
    peak_mb: float | None
    samples: int
    repeats: int

    def to_json(self) -> dict[str, Any]:
        """For the summary."""
        return asdict(self)


def judge(
    measurements: Sequence[Mapping[str, Any]],
    *,
    repeats: int,
    p95_ms: float | None = None,
    peak_mb: float | None = None,
    rules: Rules | None = None,
) -> Verdict:
    """Judge the repeats of one artifact on one device.

    Args:
        measurements: those taken, failed ones included.
        repeats: how many there should be.
        p95_ms, peak_mb: limits; None: no limit.
    """
    rules = rules or Rules()
    good = [m for m in measurements if m["status"] == "ok"]
    p95 = max((m["statistics"]["p95_ms"] for m in good), default=None)
    peak = max((m["memory"]["peak_mb"] for m in good if m["memory"]["peak_mb"] is not None), default=None)
    samples = sum(m["statistics"]["samples"] for m in good)
    wrong = [f"its outputs differ from this host's: {w}" for m in good if m["host"] for w in m["host"]["why"]]
    doubts = _doubts(measurements, good, repeats, samples, rules)
    noise = [] if _emulated(good) else _noise(good, rules)
    broken = []
    # Another device's noise or heat makes times longer, not memory larger.
    if peak is not None and peak_mb is not None and peak > peak_mb and not _emulated(good):
        broken.append(f"peak memory is {peak:.1f} MiB, the budget is {peak_mb:g}")
    if p95 is not None and p95_ms is not None and p95 > p95_ms and not doubts and not noise:
        broken.append(f"p95 is {p95:.3f} ms, the budget is {p95_ms:g}")
    if peak_mb is not None and any(m["memory"]["peak_mb"] is None for m in good):
        doubts.append(f"the budget is {peak_mb:g} MiB of peak memory, and this place does not show any")
    word: Word | None
    if wrong or broken:
        word, reasons = "FAIL", wrong + broken
    elif p95_ms is None and peak_mb is None:
        word, reasons = None, doubts + noise
    elif doubts or (noise and p95_ms is not None):
        word, reasons = "INCONCLUSIVE", doubts + noise
    else:
        word, reasons = "PASS", []
    return Verdict(
        word=word,
        reasons=tuple(dict.fromkeys(reasons)),
        p50_ms=max((m["statistics"]["p50_ms"] for m in good), default=None),
        p95_ms=p95,
        peak_mb=peak,
        samples=samples,
        repeats=len(good),
    )


def _emulated(good: Sequence[Mapping[str, Any]]) -> bool:
    return any(m["emulated"] for m in good)


def _doubts(
    measurements: Sequence[Mapping[str, Any]],
    good: Sequence[Mapping[str, Any]],
    repeats: int,
    samples: int,
    rules: Rules,
) -> list[str]:
    """Why the measurement does not count, whatever its figures are."""
    found = []
    if _emulated(good):
        found.append(f"emulated: {good[0]['device']['why_emulated']}")
    if len(good) < repeats:
        errors = [m["error"]["message"] for m in measurements if m["status"] != "ok" and m["error"]]
        found.append(f"{len(good)} of {repeats} repeats were measured" + (f" ({errors[0]})" if errors else ""))
    for m in good:
        conditions = m["conditions"]
        if conditions["gate"]["timed_out"]:
            found.append(
                f"the temperature gate timed out at {conditions['gate']['celsius']:.1f} °C, "
                f"the limit is {conditions['gate']['limit']:g}"
            )
        if conditions["before"]["charging"] and not rules.allow_charging:
            found.append("the device was charging (--allow-charging lets that count)")
    if good and samples < NEEDED[95] and not _emulated(good):
        found.append(f"{samples} samples are too few for a p95, which needs {NEEDED[95]}")
    return found


def _noise(good: Sequence[Mapping[str, Any]], rules: Rules) -> list[str]:
    """Why times do not count."""
    found = []
    for m in good:
        harness = {"before": m["conditions"]["harness_before"], "after": m["conditions"]["harness_after"]}
        slow = throttled(harness, summarise(m["samples_ns"]))
        if slow is not None:
            found.append(f"throttled in repeat {m['measurement']['repeat']}: {slow}")
    tails = sorted(m["statistics"]["p95_ms"] for m in good)
    if 0 in tails:
        found.append("a p95 of 0 ms is below the clock's step")
    elif len(tails) > 1:
        spread = (tails[-1] - tails[0]) / tails[len(tails) // 2]
        if spread > rules.max_spread:
            found.append(f"the repeats' p95 differ by {spread:.0%}, more than {rules.max_spread:.0%}")
    return found
