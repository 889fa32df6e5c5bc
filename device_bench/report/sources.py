"""What a report is made from: the result store, the manifests of builds, budgets. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build.budgets import check_class, from_mapping, read_budgets
from build.errors import InputError
from build.manifest import intact
from device_bench.report.data import Problem
from device_bench.report.gather import Inputs
from device_bench.report.measured import Stored, select
from device_bench.report.rows import Judging
from device_bench.report.text import clean, message
from device_bench.store import Cell, Manifest, Query, ResultStore, open_results
from device_bench.verdict import Rules
from models.spec import Budget
from targets.registry import all_targets

#: a session's name after this word is the platform whose budgets apply.
_BENCH = "bench-"


def read(
    results: str | None, out: Path | None, *, budgets: Path | None, device_class: str, query: Query | None = None
) -> Inputs:
    """Read everything.

    Args:
        results: a folder or URL; None: there are no measurements.
        out: where builds put their artifacts; None: there are none.
        budgets: limits in place of the models' own and of the runs'.
        query: narrows builds as well as measurements; with devices, builds that were measured there are left.

    Raises:
        InputError: the results or the budgets cannot be read.
    """
    query = query or Query()
    facts = all_targets()
    own = read_budgets(budgets) if budgets else None
    records = _records(out)
    problems: list[Problem] = []
    store = open_results(results, out=out) if results is not None else None
    manifests = store.manifests(query) if store else []
    if store is None and out is not None:
        manifests, problems = _manifests_only(out, query)
    # Two artifacts of one name differ in how they were built; what lies in the output folder is what would ship.
    values = {(m.model, m.target, m.precision): m for m in sorted(manifests, key=lambda m: _in(out, m.path))}
    measurements: list[Stored] = []
    long_runs: list[Stored] = []
    runs: dict[str, Mapping[str, Any]] = {}
    limits: dict[tuple[str, ...], Mapping[str, float | None]] = {}
    if store is not None:
        cells, lasting = select(store.cells(query), {name: m.sha256 for name, m in values.items()})
        measurements = _documents(store, cells)
        long_runs = _documents(store, lasting)
        shown = {cell.run for cell in cells}
        runs = {run.name: run.record for run in store.runs() if run.record is not None and run.name in shown}
        limits = {} if own is not None else _limits(store, sorted(shown))
        problems = [Problem(path=clean(p.path, 200), message=message(p.reason)) for p in store.problems()]
        store.close()
    if device_class != "*":
        check_class(
            device_class, own if own is not None else [b for m, r in records.items() for b in _models_own(r, m)]
        )
    there = (
        {(one.key.model, one.key.target, one.key.precision) for one in measurements} if query.devices else set(values)
    )
    elsewhere = {name for name in values if name not in there}
    return Inputs(
        measurements=measurements,
        long_runs=long_runs,
        manifests=[m.value for name, m in values.items() if name not in elsewhere],
        judging=Judging(
            budgets=lambda model: own if own is not None else _models_own(records.get(model), model),
            platforms=lambda target: facts[target].platforms if target in facts else (),
            device_class=device_class,
            limits=limits,
            rules={name: _rules(r["rules"]) for name, r in runs.items() if "rules" in r},
        ),
        facts={name: f for name, f in facts.items() if name in (query.targets or facts)},
        runs=runs,
        platforms={s: s.removeprefix(_BENCH) for r in runs.values() if (s := str(r.get("session", "")))},
        problems=problems,
        altered={name for name, m in values.items() if name not in elsewhere and _altered(out, m)},
        elsewhere=elsewhere,
    )


def _documents(store: ResultStore, cells: Sequence[Cell]) -> list[Stored]:
    """The whole measurements of these cells."""
    return [
        Stored(key=cell.key, run=cell.run, path=m.path, value=store.document(m))
        for cell in cells
        for m in cell.measurements
    ]


def _in(out: Path | None, path: str) -> bool:
    """Whether a manifest's path is one below the output folder."""
    return out is not None and (out / path).is_file()


def _altered(out: Path | None, found: Manifest) -> bool:
    """Whether an artifact's files below the output folder are gone, or others than its manifest lists. Of a manifest
    that is only kept with the results, and of one that names no artifact, nothing is expected there."""
    if out is None or not _in(out, found.path) or not found.value["files"]:
        return False
    try:
        return not intact((out / found.path).parent, found.value)
    except OSError:
        return True


def _manifests_only(out: Path, query: Query) -> tuple[list[Any], list[Problem]]:
    """Manifests where there are no results yet."""
    import tempfile

    with tempfile.TemporaryDirectory() as empty:
        store = open_results(empty, out=out)
        found = store.manifests(query)
        problems = [Problem(path=clean(p.path, 200), message=message(p.reason)) for p in store.problems()]
        store.close()
    return found, problems


def _limits(store: ResultStore, runs: Sequence[str]) -> dict[tuple[str, ...], Mapping[str, float | None]]:
    """The limits that the runs themselves judged by."""
    found: dict[tuple[str, ...], Mapping[str, float | None]] = {}
    for run in runs:
        for row in (store.summary(run) or {"rows": ()})["rows"]:
            found[(run, row["device"], row["model"], row["target"], row["precision"])] = row.get("limits") or {}
    return found


def _rules(recorded: Mapping[str, Any]) -> Rules:
    return Rules(max_spread=recorded["max_spread"], allow_charging=recorded["allow_charging"])


def _records(out: Path | None) -> dict[str, Path]:
    """Model -> what its capture wrote. No path is made of a name that a result file tells."""
    found = out.glob("*/program/program.json") if out is not None else ()
    return {file.parent.parent.name: file for file in found}


def _models_own(record: Path | None, model: str) -> Sequence[Budget]:
    """The budgets that a model's spec states, as its capture recorded them.

    Raises:
        InputError: they are no budgets.
    """
    if record is None:
        return ()
    try:
        tables = json.loads(record.read_text(encoding="utf-8")).get("budgets", [])
        return [from_mapping(dict(t), f"the budget of '{model}'") for t in tables]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"the budgets of '{clean(model)}' cannot be read: {message(error)}", remedy="Build again with --force."
        ) from error
