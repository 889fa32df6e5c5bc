"""From measurements, manifests and budgets to a report. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from device_bench.report.builds import build_of
from device_bench.report.data import Build, Device, Problem, Report, Row, Toolchain
from device_bench.report.devices import device_of
from device_bench.report.findings import findings
from device_bench.report.measured import Stored, measured_of
from device_bench.report.rows import Judging, Name, row_of
from device_bench.report.text import clean
from device_bench.store import Key
from targets.precisions import PRECISIONS
from targets.registry import TargetFacts


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a report is made from.

    Attributes:
        measurements, manifests: they keep to their schemas.
        long_runs: measurements that are shown over time.
        runs: run -> its record (``run.json``), where it could be read.
        platforms: bench session -> platform whose budgets apply.
        altered: artifacts whose files are not those of their manifests.
        elsewhere: artifacts that were built and are left out: they were not measured on the devices asked for.
    """

    measurements: Sequence[Stored]
    manifests: Sequence[Mapping[str, Any]]
    judging: Judging
    facts: Mapping[str, TargetFacts]
    long_runs: Sequence[Stored] = ()
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    platforms: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    altered: Set[Name] = frozenset()
    elsewhere: Set[Name] = frozenset()


def gather(inputs: Inputs) -> Report:
    """The report."""
    named = [((m["model"], m["target"], m["precision"]), m) for m in inputs.manifests]
    manifests = {name: (build_of(m, intact=name not in inputs.altered), m) for name, m in named}
    groups: dict[Key, list[Stored]] = {}
    for one in inputs.measurements:
        groups.setdefault(one.key, []).append(one)
    rows = _rows(inputs, manifests, groups)
    builds = [b for b, _ in manifests.values()]
    things: list[Row | Build] = [*rows, *builds]
    models = tuple(sorted({t.model for t in things}))
    targets = _ordered({t.target for t in things}, list(inputs.facts))
    precisions = _ordered({t.precision for t in things}, list(PRECISIONS))

    def place(thing: Row | Build) -> tuple[int, int, int]:
        return models.index(thing.model), targets.index(thing.target), precisions.index(thing.precision)

    builds.sort(key=place)
    shown = list(inputs.measurements)
    emulated = {clean(one.key.device) for one in shown if one.value["emulated"]}
    rows.sort(key=lambda r: (*place(r), *_setting(r, emulated)))
    elsewhere = {(clean(model), clean(target), clean(precision)) for model, target, precision in inputs.elsewhere}
    ok = [one for one in shown if one.value["status"] == "ok"]
    return Report(
        models=models,
        targets=targets,
        precisions=precisions,
        builds=tuple(builds),
        rows=tuple(rows),
        devices=_devices(shown, inputs.long_runs, rows),
        findings=findings(builds, rows, shown, inputs.facts, precisions, elsewhere),
        problems=tuple(inputs.problems),
        toolchains=_toolchains(builds, ok),
        runs=tuple(sorted({clean(one.run) for one in shown})),
        first=clean(min((one.value["started"] for one in shown), default="")),
        last=clean(max((one.value["started"] for one in shown), default="")),
        taken=len(ok),
        failed=len(shown) - len(ok),
    )


def _ordered(names: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Known names in their own order, then the others."""
    return tuple(sorted(names, key=lambda n: (known.index(n) if n in known else len(known), n)))


def _setting(row: Row, emulated: Set[str]) -> tuple[bool, str, str, int, int]:
    """Sorts the rows of one artifact: real devices first."""
    m = row.measured
    return (False, "", "", 0, 0) if m is None else (m.device in emulated, m.device, m.variant, m.threads, m.batch or 0)


def _rows(
    inputs: Inputs, manifests: Mapping[Name, tuple[Build, Mapping[str, Any]]], groups: Mapping[Key, Sequence[Stored]]
) -> list[Row]:
    found = []
    measured_names = set()
    for key, stored in groups.items():
        name = (key.model, key.target, key.precision)
        measured_names.add(name)
        build, manifest = manifests.get(name, (None, None))
        values = [one.value for one in stored]
        run = stored[0].run
        record = inputs.runs.get(run, {})
        seen = len({v["measurement"]["repeat"] for v in values})
        measured = measured_of(
            key, values, [o.path for o in stored], build, run=run, wanted=max(int(record.get("repeats", 0)), seen)
        )
        platform = inputs.platforms.get(str(record.get("session", "")), "")
        row = row_of(
            name,
            build,
            manifest,
            measured,
            values,
            inputs.judging,
            platform=platform,
            run=run,
            swept=_over_batches(record),
        )
        found.append(row)
    for name, (build, manifest) in manifests.items():
        if name not in measured_names:
            found.append(row_of(name, build, manifest, None, (), inputs.judging, platform=""))
    return found


def _over_batches(record: Mapping[str, Any]) -> bool:
    """Whether a run sweeps over batches. What a record says of its points keeps to no schema."""
    points = record.get("points")
    points = points if isinstance(points, list) else []
    return len({str(p.get("batch")) for p in points if isinstance(p, dict)}) > 1


def _devices(shown: Sequence[Stored], lasting: Sequence[Stored], rows: Sequence[Row]) -> tuple[Device, ...]:
    """Real devices first."""
    stored: dict[str, list[Stored]] = {}
    for one in shown:
        stored.setdefault(one.key.device, []).append(one)
    found = [
        device_of(
            name,
            ones,
            [one for one in lasting if one.key.device == name],
            [r for r in rows if r.measured and r.measured.device == clean(name)],
        )
        for name, ones in stored.items()
    ]
    return tuple(sorted(found, key=lambda d: (d.emulated, d.name)))


def _toolchains(builds: Sequence[Build], measured: Sequence[Stored]) -> tuple[Toolchain, ...]:
    found: dict[tuple[str, str], set[str]] = {}
    for build in builds:
        for package, version in build.toolchain.items():
            found.setdefault((build.target, package), set()).add(version)
    for one in measured:
        value = one.value
        where = f"device {clean(value['measurement']['device'])}"
        found.setdefault((where, clean(value["runtime"]["name"])), set()).add(clean(value["runtime"]["version"]))
        if value["harness"]:
            version = f"{clean(value['harness']['version'])} ({clean(value['harness']['arch'])})"
            found.setdefault((where, "harness"), set()).add(version)
    return tuple(
        Toolchain(where=where, package=package, versions=tuple(sorted(versions)))
        for (where, package), versions in sorted(found.items())
    )
