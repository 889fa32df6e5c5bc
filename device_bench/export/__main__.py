"""``python -m device_bench.export --format F FILE [options]``: what ``nox -s export`` runs."""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from build.entry import main as run_as_process
from build.errors import InputError, StorageError
from device_bench.export.junit import to_junit
from device_bench.export.openmetrics import to_openmetrics
from device_bench.export.table import to_csv, write_parquet
from device_bench.export.tflite import to_tflite
from device_bench.store import Query, ResultStore, cli, open_results

#: format -> what it holds.
FORMATS = {
    "csv": "one row per measurement",
    "parquet": "one row per measurement, typed",
    "junit": "one test case per cell: of the newest run that has it, or of --run",
    "openmetrics": "the newest run of each cell, for Prometheus",
    "tflite": "one BenchmarkResult per measurement, as TFLite's benchmark_model writes",
}


def parser() -> cli.Parser:
    """The options; ``--help`` prints them."""
    listed = "; ".join(f"{name}: {text}" for name, text in FORMATS.items())
    p = cli.parser("export", f"Write results for other tools. {listed}.")
    p.add_argument("file", metavar="FILE", help="what to write")
    p.add_argument("--format", required=True, choices=tuple(FORMATS))
    p.add_argument("--run", action="append", metavar="NAME", default=[], help="only this run (repeatable)")
    p.add_argument("--samples", action="store_true", help="the raw samples as well (parquet only)")
    return p


def _export(raw: argparse.Namespace) -> int:
    if raw.samples and raw.format != "parquet":
        raise InputError(f"--samples: {raw.format} has no place for raw samples", remedy="Use --format parquet.")
    cli.check_outputs(raw.results, {"FILE": raw.file})
    query = replace(cli.query(raw), runs=tuple(raw.run))
    with closing(open_results(raw.results)) as store:
        for name in query.runs:
            store.run(name)
        cli.report_problems([store])
        found = store.measurements(query)
        if not found:
            raise InputError(f"there is nothing to export: no measurement in '{store.place}' fits")
        path = Path(raw.file).resolve()
        if raw.format == "parquet":
            _parquet(path, store, query, samples=raw.samples)
        else:
            cli.write_text(raw.file, _text(raw.format, store, query))
    print(f"{len(found)} measurements: {os.path.relpath(path)}", flush=True)
    return 0


def _text(form: str, store: ResultStore, query: Query) -> str:
    if form == "csv":
        return to_csv(store.measurements(query))
    if form == "tflite":
        return to_tflite(store, store.measurements(query))
    if not query.runs:  # a long run is asked for by its name
        query = replace(query, sustained=False)
    cells = store.cells(query) if query.runs and form == "junit" else store.latest(query)
    if not cells:
        raise InputError("there is nothing to export but sustained runs", remedy="Name one: --run NAME.")
    return to_junit(store, cells) if form == "junit" else to_openmetrics(cells)


def _parquet(path: Path, store: ResultStore, query: Query, *, samples: bool) -> None:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(part, store.measurements(query), store if samples else None)
        part.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write '{path}': {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def main(argv: list[str]) -> int:
    """Export; returns the exit code."""
    return cli.run(argv, parser, _export)


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
