"""The store: results as files, read through an index. See the package's docstring."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from build.errors import InputError, RejectedResultError
from build.manifest import MANIFEST
from device_bench.store import check, columns, versions
from device_bench.store.files import Files, open_files
from device_bench.store.index import Index
from device_bench.store.rows import Cell, Facts, Key, Manifest, Measurement, Problem, Query, Run
from device_bench.store.text import plain

_ALL = Query()
#: of one SQL statement; SQLite takes 32,766.
_MOST_PARAMETERS = 10_000
_FILTERS = {"models": "model", "targets": "target", "precisions": "precision", "devices": "device", "runs": "run"}


class ResultStore:
    """Results at one place. Everything is as of when it was opened, or of the last :meth:`refresh`."""

    def __init__(self, files: Files, out: Path | None = None) -> None:
        self._files = files
        self._index = Index(files)
        self._out = out
        self._facts: dict[int, Facts] = {}
        self._runs: dict[str, Run] | None = None
        self._out_problems: list[Problem] = []
        self.refresh()

    @property
    def place(self) -> str:
        """The folder or URL."""
        return self._files.place

    def refresh(self) -> None:
        """See what is there now."""
        self._index.refresh()
        self._facts.clear()
        self._runs = None

    def close(self) -> None:
        """Let go of the index."""
        self._index.close()

    def problems(self) -> list[Problem]:
        """Every file that was skipped, and why; sorted by path. Those of ``out`` are known after :meth:`manifests`."""
        return sorted({*self._index.problems(), *self._out_problems})

    def runs(self) -> list[Run]:
        """Every run, from oldest to newest."""
        if self._runs is None:
            counts = self._index.select(
                "SELECT run, count(*), min(started) FROM measurements WHERE twin IS NULL GROUP BY run"
            )
            records = {
                name: (started, json.loads(text))
                for name, started, text in self._index.select("SELECT name, started, text FROM runs")
            }
            counted = {run: (count, first) for run, count, first in counts}
            found = []
            for name in {*records, *counted}:
                count, first = counted.get(name, (0, ""))
                started, record = records.get(name, (first, None))
                found.append(Run(name=name, started=started, record=record, measurements=count))
            self._runs = {run.name: run for run in sorted(found, key=lambda r: r.order)}
        return list(self._runs.values())

    def run(self, name: str) -> Run:
        """One run.

        Raises:
            InputError: there is none of this name.
        """
        found = {run.name: run for run in self.runs()}
        if name not in found:
            raise InputError(f"there is no run '{plain(name, 80)}' in '{plain(self.place)}'")
        return found[name]

    def measurements(self, query: Query = _ALL) -> list[Measurement]:
        """Those that fit, from the oldest run to the newest, each run's by key and repeat."""
        where, parameters = self._where(query)
        if query.version is not None:
            versions.check(query.version)
        found = self._read(where, parameters)
        if query.version is not None:
            found = [m for m in found if versions.matches(query.version, versions.of(m, self.revision(m.run)))]
        return found

    def _read(self, where: str, parameters: Sequence[Any]) -> list[Measurement]:
        names = ", ".join(columns.COLUMNS)
        rows = self._index.select(f"SELECT path, facts, {names} FROM measurements WHERE {where}", parameters)
        self._load_facts({row[1] for row in rows})
        keys: dict[tuple[Any, ...], Key] = {}
        found = []
        for path, facts, *row in rows:
            parts = columns.key_of(row)
            key = keys.get(parts) or keys.setdefault(parts, Key(**dict(zip(columns.KEY, parts, strict=True))))
            found.append(columns.from_row(path, row, key, self._facts[facts]))
        run_order = {run.name: i for i, run in enumerate(self.runs())}
        # Equal keys are one object here: their places are looked up by identity, which is much cheaper.
        key_order = {id(key): i for i, (_, key) in enumerate(sorted(keys.items()))}
        found.sort(key=lambda m: (run_order[m.run], key_order[id(m.key)], m.repeat))
        return found

    def revision(self, run: str) -> str | None:
        """The revision of the sources that a run recorded, where it did."""
        record = self.run(run).record or {}
        return record.get("revision")

    def cells(self, query: Query = _ALL) -> list[Cell]:
        """The repeats of each key in each run, from the oldest run to the newest."""
        return _grouped(self.measurements(query))

    def latest(self, query: Query = _ALL) -> list[Cell]:
        """For each key the cell of the newest run that has it, by key."""
        if query.version is not None:  # that needs what is not a column
            cells = self.cells(query)
        else:
            where, parameters = self._where(query)
            names = ", ".join(columns.KEY)
            order = {run.name: i for i, run in enumerate(self.runs())}
            newest: dict[tuple[Any, ...], str] = {}
            for run, *key in self._index.select(
                f"SELECT DISTINCT run, {names} FROM measurements WHERE {where}", parameters
            ):
                before = newest.get(tuple(key))
                if before is None or order[before] < order[run]:
                    newest[tuple(key)] = run
            runs = sorted(set(newest.values()))
            if len(runs) < _MOST_PARAMETERS:
                where = f"{where} AND run IN ({','.join('?' * len(runs))})"
                parameters += runs
            found = self._read(where, parameters)
            cells = [c for c in _grouped(found) if newest[c.key.parts] == c.run]
        return sorted({cell.key: cell for cell in cells}.values(), key=lambda c: c.key)

    def document(self, measurement: Measurement) -> dict[str, Any]:
        """The whole measurement, checked again: conditions, accuracy with its changed decisions, raw samples.

        Raises:
            InputError: the file is gone, or is no longer what the index says.
        """
        content = self._files.read(measurement.path)
        run, folder, _ = measurement.path.split("/")
        try:
            value = check.measurement(content, folder=folder) if content is not None else None
        except RejectedResultError:
            value = None
        if value is None or not _is_of(measurement, columns.to_row(run, value), columns.facts_of(value)):
            raise InputError(f"'{plain(measurement.path)}' changed while it was read", remedy="Run it again.")
        return value

    def samples(self, measurement: Measurement) -> list[int]:
        """The raw samples in ns, in their order; none where it failed.

        Raises:
            InputError: see :meth:`document`.
        """
        return list(self.document(measurement).get("samples_ns", ())) if measurement.ok else []

    def summary(self, run: str) -> dict[str, Any] | None:
        """A run's ``summary.json`` (verdicts, limits, errors); None where there is none that can be used."""
        content = self._files.read(f"{run}/summary.json")
        try:
            return None if content is None else check.summary(content)
        except RejectedResultError:
            return None

    def manifests(self, query: Query = _ALL) -> list[Manifest]:
        """Manifests kept with the results, and those of ``out``; of two with one key, the one in ``out``."""
        found: dict[str, Manifest] = {}
        where = [("models", "model"), ("targets", "target"), ("precisions", "precision")]
        rows = self._index.select("SELECT path, model, target, precision FROM manifests ORDER BY path")
        for path, *named in rows:
            if all(value in (getattr(query, f) or (value,)) for (f, _), value in zip(where, named, strict=True)):
                content = self._files.read(path)
                if content is not None:
                    self._take(found, path, content, [])
        problems: list[Problem] = []
        for file in sorted(self._out.glob(f"*/*/*/{MANIFEST}")) if self._out is not None else ():
            name = str(file.relative_to(self._out or file.anchor))
            try:
                content = file.read_bytes()
            except OSError as error:
                problems.append(Problem(path=plain(name), reason=f"it cannot be read: {error.strerror or error}"))
                continue
            self._take(found, name, content, problems, query)
        self._out_problems = problems
        return sorted(found.values(), key=lambda m: (m.model, m.target, m.precision, m.path))

    def _take(
        self, found: dict[str, Manifest], path: str, content: bytes, problems: list[Problem], query: Query = _ALL
    ) -> None:
        try:
            value = check.manifest(content)
        except RejectedResultError as error:
            problems.append(Problem(path=plain(path), reason=error.message))
            return
        for names, name in ((query.models, "model"), (query.targets, "target"), (query.precisions, "precision")):
            if names and value[name] not in names:
                return
        main = value.get("main")
        found[value["key"]] = Manifest(
            path=path,
            **{name: value[name] for name in ("model", "target", "precision", "status", "key")},
            sha256=next((f["sha256"] for f in value["files"] if f["path"] == main), ""),
            value=value,
        )

    def _where(self, query: Query) -> tuple[str, list[Any]]:
        """The part of a query that columns answer: a condition, and its parameters."""
        where, parameters = ["twin IS NULL"], []
        for field, column in _FILTERS.items():
            values = getattr(query, field)
            if values:
                where.append(f"{column} IN ({','.join('?' * len(values))})")
                parameters += list(values)
        if query.since is not None:
            where.append("started >= ?")
            # As text the end of a time stands after its beginning, but "…T10:00Z" would stand after "…T10:00:59Z".
            parameters.append(query.since.removesuffix("Z"))
        if query.ok is not None:
            where.append("ok = ?")
            parameters.append(int(query.ok))
        if query.sustained is not None:
            long = [run.name for run in self.runs() if run.sustained]
            where.append(f"run {'' if query.sustained else 'NOT '}IN ({','.join('?' * len(long))})")
            parameters += long
        return " AND ".join(where), parameters

    def _load_facts(self, wanted: Iterable[int]) -> None:
        if not set(wanted) <= self._facts.keys():
            rows = self._index.select("SELECT id, text FROM facts")
            self._facts = {number: columns.read_facts(text) for number, text in rows}


def _is_of(measurement: Measurement, row: Sequence[Any], facts: str) -> bool:
    key = Key(**dict(zip(columns.KEY, columns.key_of(row), strict=True)))
    return columns.from_row(measurement.path, row, key, columns.read_facts(facts)) == measurement


def _grouped(measurements: Iterable[Measurement]) -> list[Cell]:
    """Cells of measurements that are sorted by run and key."""
    groups: list[list[Measurement]] = []
    for m in measurements:
        last = groups[-1][0] if groups else None
        if last is not None and last.key is m.key and last.run == m.run:
            groups[-1].append(m)
        else:
            groups.append([m])
    return [Cell(key=g[0].key, run=g[0].run, measurements=tuple(g)) for g in groups]


def open_results(place: str | Path, *, out: Path | None = None) -> ResultStore:
    """The results at a folder or URL, indexed.

    Args:
        out: where builds put their artifacts: their manifests are read too.

    Raises:
        InputError: there is no such folder.
        MissingToolError: fsspec has no driver for the URL, or it is not installed.
        StorageError: the place cannot be listed, or the index cannot be written.
    """
    return ResultStore(open_files(place), out)
