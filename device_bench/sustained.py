"""What a long run shows: how fast a device is at its best, how fast it stays, and when it began to throttle.

The time axis comes from the samples themselves, which follow one another: it is cut into equal windows, each with a
median. The peak is the fastest tenth of it; the steady state is the last third of the run, as in MLPerf
Mobile's and 3DMark's long runs, where phones have settled. Standard library only.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from device_bench.advice import THROTTLED_DRIFT
from device_bench.statistics import Statistics, nearest_rank, summarise

#: windows that a run is cut into, at most.
WINDOWS = 60
#: samples that a window has on average, at least.
LEAST_IN_WINDOW = 20
#: windows that a run needs before throttling is looked for.
LEAST_WINDOWS = 6
#: the steady state begins this share of the run before its end.
STEADY_SHARE = 1 / 3
_PEAK_SHARE = 1 / 10
_LEAST_PEAK = 3
#: throttling began where windows leave the peak by a third of what the steady state loses, and by this share at least.
_LEAST_RISE = 0.05
#: share of the later windows that must stay above that: clocks that are lowered come back for moments.
_STAYS = 0.8


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of the run: from ``start_s`` on."""

    start_s: float
    p50_ms: float
    samples: int


@dataclass(frozen=True, kw_only=True)
class Sustained:
    """A long run.

    Attributes:
        seconds: of the timed loop.
        peak, steady: figures of the fastest stretch, and of the last third.
        peak_per_second, steady_per_second: runs of the artifact per second there; a batch is one run.
        slowdown: the steady median over the peak's, minus 1.
        throttled: whether that is more than the lab's limit for throttling (15 %); None: too few windows to say.
        throttled_at_s: when it began, in seconds from the start; None when it did not.
    """

    seconds: float
    samples: int
    windows: tuple[Window, ...]
    peak: Statistics
    steady: Statistics
    peak_per_second: float
    steady_per_second: float
    slowdown: float
    throttled: bool | None
    throttled_at_s: float | None

    def to_json(self) -> dict[str, Any]:
        """For a summary or a report."""
        return {**asdict(self), "windows": [asdict(w) for w in self.windows]}


def analyse(samples_ns: Sequence[int], *, loop_ns: int | None = None) -> Sustained:
    """The peak, the steady state and the beginning of throttling in one measurement's raw samples.

    Args:
        samples_ns: in the order in which they were measured.
        loop_ns: how long the timed loop took, where that is known: pauses between samples, and requests that overlap,
            then count. Without it the samples' sum.

    Raises:
        ValueError: no samples.
    """
    if not samples_ns:
        raise ValueError("no samples")
    total = loop_ns if loop_ns else sum(samples_ns)
    ends = _ends(samples_ns, total)
    groups = _windows(samples_ns, ends, total)
    windows = tuple(
        Window(start_s=round(start / 1e9, 6), p50_ms=_median(g) / 1e6, samples=len(g)) for start, g in groups
    )
    width = max(round(len(windows) * _PEAK_SHARE), _LEAST_PEAK)
    at = _peak(windows, width)
    peak = [s for _, group in groups[at : at + width] for s in group]
    steady_from = total * (1 - STEADY_SHARE)
    steady = [s for s, end in zip(samples_ns, ends, strict=True) if end > steady_from] or list(samples_ns)
    figures = summarise(peak), summarise(steady)
    slowdown = figures[1].p50_ms / figures[0].p50_ms - 1 if figures[0].p50_ms else 0.0
    throttled = slowdown > THROTTLED_DRIFT if len(windows) >= LEAST_WINDOWS else None
    stretch = (groups[at + width][0] if at + width < len(groups) else total) - groups[at][0]
    return Sustained(
        seconds=round(total / 1e9, 6),
        samples=len(samples_ns),
        windows=windows,
        peak=figures[0],
        steady=figures[1],
        peak_per_second=round(len(peak) * 1e9 / max(stretch, 1), 3),
        steady_per_second=round(len(steady) * 1e9 / max(total * STEADY_SHARE, 1), 3),
        slowdown=round(slowdown, 4),
        throttled=throttled,
        throttled_at_s=_began(windows, at, width, slowdown) if throttled else None,
    )


def _ends(samples_ns: Sequence[int], total: int) -> list[float]:
    """When each sample ended, in ns from the start of the loop."""
    scale = total / max(sum(samples_ns), 1)
    ends, passed = [], 0
    for sample in samples_ns:
        passed += sample
        ends.append(passed * scale)
    return ends


def _windows(samples_ns: Sequence[int], ends: Sequence[float], total: int) -> list[tuple[float, list[int]]]:
    """Start and samples of each window; one without a sample, because one took longer than it, is left out."""
    count = max(1, min(WINDOWS, len(samples_ns) // LEAST_IN_WINDOW))
    width = max(total, 1) / count
    groups: list[list[int]] = [[] for _ in range(count)]
    for sample, end in zip(samples_ns, ends, strict=True):
        groups[min(int(end / width), count - 1)].append(sample)
    return [(i * width, group) for i, group in enumerate(groups) if group]


def _median(samples: Sequence[int]) -> int:
    return nearest_rank(sorted(samples), 50)


def _peak(windows: Sequence[Window], width: int) -> int:
    """The first of the windows that are fastest together."""
    starts = range(max(len(windows) - width + 1, 1))
    return min(starts, key=lambda i: statistics.median(w.p50_ms for w in windows[i : i + width]))


def _began(windows: Sequence[Window], peak: int, width: int, slowdown: float) -> float:
    level = statistics.median(w.p50_ms for w in windows[peak : peak + width])
    limit = level * (1 + max(_LEAST_RISE, slowdown / 3))
    for i in range(peak + 1, len(windows)):
        later = windows[i:]
        if windows[i].p50_ms > limit and sum(w.p50_ms > limit for w in later) >= _STAYS * len(later):
            return windows[i].start_s
    # The steady state is slower as a whole although no window begins it: it began with the steady state.
    return windows[-1].start_s
