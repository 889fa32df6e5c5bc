"""The series of one key through all runs, with the changes found in it."""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from device_bench.store import Cell, Key, Query, ResultStore, plain
from device_bench.store.versions import HASHED
from device_bench.store.versions import of as versions_of
from device_bench.trend.points import change_points

#: figure -> its value in a cell, and whether it is a time: those vary, and need a test.
FIGURES: dict[str, tuple[Callable[[Cell], float | None], bool]] = {
    "p50_ms": (lambda c: c.p50_ms, True),
    "p95_ms": (lambda c: c.p95_ms, True),
    "bytes": (lambda c: c.measurements[0].artifact_bytes, False),
    "metric": (lambda c: None if c.metric is None else c.metric[1], False),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A cell of one run: its figures, and the versions behind it."""

    run: str
    started: str
    figures: dict[str, float | None]
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A figure's new level.

    Attributes:
        run: the first with the new level; ``after`` is the last with the old one.
        before, now: the old and the new level (medians of a time).
        change: ``now / before - 1``; None when the old level was 0.
        p: of the test; None for what does not vary: size and metric.
        why: what else changed between the two runs: ``torch 2.13.0 → 2.14.0``.
    """

    figure: str
    run: str
    started: str
    after: str
    before: float
    now: float
    change: float | None
    p: float | None
    why: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One key over time.

    Attributes:
        notes: why shifts were not looked for.
    """

    key: Key
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...]
    notes: tuple[str, ...]

    def values(self, figure: str) -> list[float]:
        """The figure's values, those that are missing left out."""
        return [v for p in self.points if (v := p.figures[figure]) is not None]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **self.key.to_json(),
            "points": [asdict(p) for p in self.points],
            "shifts": [asdict(s) for s in self.shifts],
            "notes": list(self.notes),
        }


def all_series(store: ResultStore, query: Query, *, threshold: float, significance: float, seed: int) -> list[Series]:
    """Every key's series, by key.

    Args:
        threshold: changes of a time that are smaller do not matter.
        significance: the largest p-value that counts.
    """
    cells: dict[Key, list[Cell]] = {}
    for cell in store.cells(query):
        cells.setdefault(cell.key, []).append(cell)
    found = []
    for key, members in sorted(cells.items()):
        points = [_point(store, cell) for cell in members]
        emulated = any(c.emulated for c in members)
        shifts: list[Shift] = []
        for figure, (_, is_time) in FIGURES.items():
            if not is_time:
                shifts += _steps(figure, points)
            elif not emulated:
                number = seed + zlib.crc32(f"{key.label} {figure}".encode())
                shifts += _levels(figure, points, threshold, significance, number)
        notes = ["emulated: times mean nothing here, no change of them is named"] if emulated else []
        failed = [c.run for c in members if not c.good]
        notes += [f"nothing was measured in {plain(', '.join(failed[-3:]))}"] if failed else []
        found.append(
            Series(
                key=key,
                points=tuple(points),
                shifts=tuple(sorted(shifts, key=lambda s: (s.started, s.run, s.figure))),
                notes=tuple(notes),
            )
        )
    return found


def _point(store: ResultStore, cell: Cell) -> Point:
    first = (cell.good or cell.measurements)[0]
    system = first.facts.device.get("os")
    return Point(
        run=cell.run,
        started=store.run(cell.run).started,
        figures={name: of(cell) for name, (of, _) in FIGURES.items()},
        versions={**versions_of(first, store.revision(cell.run)), **({"OS": system} if system else {})},
    )


def _known(figure: str, points: Sequence[Point]) -> tuple[list[Point], list[float]]:
    pairs = [(p, v) for p in points if (v := p.figures[figure]) is not None]
    return [p for p, _ in pairs], [v for _, v in pairs]


def _levels(figure: str, points: Sequence[Point], threshold: float, significance: float, seed: int) -> list[Shift]:
    there, values = _known(figure, points)
    splits = change_points(values, significance=significance, seed=seed)
    edges = [0, *(at for at, _ in splits), len(values)]
    found = []
    for (at, p), begin, end in zip(splits, edges, edges[2:], strict=False):
        before, now = statistics.median(values[begin:at]), statistics.median(values[at:end])
        if abs(now / max(before, 1e-12) - 1) >= threshold:
            found.append(_shift(figure, there[at - 1], there[at], before, now, p))
    return found


def _steps(figure: str, points: Sequence[Point]) -> list[Shift]:
    there, values = _known(figure, points)
    return [
        _shift(figure, there[i - 1], there[i], values[i - 1], values[i], None)
        for i in range(1, len(values))
        if abs(values[i] - values[i - 1]) > 1e-9
    ]


def _shift(figure: str, old: Point, new: Point, before: float, now: float, p: float | None) -> Shift:
    return Shift(
        figure=figure,
        run=new.run,
        started=new.started,
        after=old.run,
        before=before,
        now=now,
        change=round(now / before - 1, 6) if before else None,
        p=p,
        why=tuple(_differences(old.versions, new.versions)),
    )


def _differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    names = sorted(n for n in old.keys() | new.keys() if old.get(n) != new.get(n))
    return [f"{plain(n, 40)} {_short(n, old.get(n))} → {_short(n, new.get(n))}" for n in names]


def _short(name: str, value: str | None) -> str:
    if value is None:
        return "none"
    return plain(value[:10] if name in HASHED else value, 40)
