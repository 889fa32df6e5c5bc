"""Measurements as the report shows them: one entry per artifact, setting and device. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from device_bench.report.builds import metric_of
from device_bench.report.data import Build, Measured
from device_bench.report.text import NAME_LIMIT, clean
from device_bench.statistics import summarise
from device_bench.store import Cell, Key

#: a timed loop that is asked to last so long is a long run.
LONG_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One measurement file that keeps to its schema.

    Attributes:
        key: what all repeats have in common, as the file spells it: not cleaned.
        run: the name of its run's folder.
        path: below the results folder.
        value: the whole of it, raw samples included.
    """

    key: Key
    run: str
    path: str
    value: Mapping[str, Any]

    @property
    def label(self) -> str:
        """``minilm litert fp32``, cleaned."""
        return clean(self.key.artifact, 2 * NAME_LIMIT)


def select(cells: Iterable[Cell], current: Mapping[tuple[str, str, str], str]) -> tuple[list[Cell], list[Cell]]:
    """The repeats to show of each key: of one run, and of the same bytes.

    Of several runs the newest counts that measured the bytes which lie in the output folder now; without one, the
    newest that measured at all; without one, the newest that tried.

    Args:
        cells: from the oldest run to the newest.
        current: (model, target, precision) -> sha256 of the bytes that lie there now.

    Returns:
        The repeats to show, and the long runs. A long run stands for a key's repeats only where there are no others:
        a device under load for minutes is slower than in the short loops that artifacts are compared by.
    """
    best: dict[tuple[Key, bool], tuple[tuple[bool, bool], Cell]] = {}
    for cell in cells:
        # A run that was resumed after a build holds repeats of other bytes: those of the last one count.
        last = max(cell.measurements, key=lambda m: m.started).artifact_sha256
        kept = replace(cell, measurements=tuple(m for m in cell.measurements if m.artifact_sha256 == last))
        measured = any(m.ok for m in kept.measurements)
        k = cell.key
        rank = (measured and current.get((k.model, k.target, k.precision)) == last, measured)
        place = (k, is_long(cell.measurements[0].facts.settings))
        if place not in best or rank >= best[place][0]:
            best[place] = (rank, kept)
    short = {k: cell for (k, long), (_, cell) in best.items() if not long}
    lasting = {k: cell for (k, long), (_, cell) in best.items() if long}
    return [cell for _, cell in sorted({**lasting, **short}.items())], [cell for _, cell in sorted(lasting.items())]


def is_long(settings: Mapping[str, Any]) -> bool:
    """Whether a measurement was asked to go on for long, as ``--sustained`` does."""
    return bool(settings["min_seconds"] >= LONG_SECONDS)


def measured_of(
    key: Key, values: Sequence[Mapping[str, Any]], files: Sequence[str], build: Build | None, *, run: str, wanted: int
) -> Measured:
    """All repeats of one key. ``wanted``: how many there should be."""
    good = [v for v in values if v["status"] == "ok"]
    first = next((v for v in good if v["accuracy"]), None)
    accuracy = first["accuracy"] if first else None
    decided = accuracy is not None and accuracy["decisions"] > 0
    artifact = values[0]["artifact"]
    rates = [v["statistics"].get("per_second") for v in good]
    runtime = next((v["runtime"] for v in good), None)
    return Measured(
        device=clean(key.device),
        run=clean(run),
        started=clean(min(v["started"] for v in values)),
        threads=key.threads,
        batch=key.batch or None,
        variant=clean(key.variant),
        bytes=artifact["bytes"],
        statistics=tuple(summarise(v["samples_ns"]) for v in good),
        samples_ns=tuple(tuple(v["samples_ns"]) for v in good),
        p50_ms=max((v["statistics"]["p50_ms"] for v in good), default=None),
        p95_ms=max((v["statistics"]["p95_ms"] for v in good), default=None),
        peak_mb=max((v["memory"]["peak_mb"] for v in good if v["memory"]["peak_mb"]), default=None),
        per_second=min((r for r in rates if r is not None), default=None),
        load_ms=max((v["load_ms"] for v in good), default=None),
        first_ms=max((v["first_ms"] for v in good), default=None),
        repeats=len(good),
        wanted=max(wanted, len(good)),
        emulated=any(v["emulated"] for v in values),
        stale=_stale(build, artifact),
        metric=metric_of(accuracy["metric"], clean(key.device)) if accuracy else None,
        changed=accuracy["changed_decisions"] if accuracy and decided else None,
        decisions=accuracy["decisions"] if accuracy and decided else None,
        host=_host(next((v["host"] for v in good if v["host"]), None)),
        runtime="" if runtime is None else clean(f"{runtime['name']} {runtime['version']}"),
        files=tuple(clean(f, 300) for f in files),
    )


def _stale(build: Build | None, artifact: Mapping[str, Any]) -> bool:
    """Whether other bytes were measured than lie in the output folder (of a folder, whether they were made alike)."""
    if build is None:
        return False
    return build.sha256 != artifact["sha256"] if build.sha256 else build.key != artifact["key"]


def _host(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return ""
    if value["identical"]:
        return "identical"
    return f"{value['differing']} of {value['calls']} calls differ"
