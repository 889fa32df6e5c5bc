"""Blame as a build that measures nodes in place of making artifacts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from build import outcomes
from build.blame.report import text
from build.cache import write_atomic
from build.driver import Build
from build.entry import main, run_session
from build.envs import Environment
from build.errors import ConverterCrash
from build.log import say
from build.manifest import json_text
from build.options import Options
from build.plan import Row, program_folder
from build.protocol import Worker, error_to_json
from build.record import record_key
from build.summary import error_line


class Blame(Build):
    """``reports`` has one entry per row that could be measured, by label."""

    worker_module = "build.blame.worker"
    makes_artifacts = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.reports: dict[str, dict[str, Any]] = {}

    def _cached(self, asked: Sequence[Row]) -> list[Mapping[str, Any] | None]:
        return [None] * len(asked)

    def _build_one(self, row: Row, worker: Worker, environment: Environment) -> dict[str, Any]:
        started = time.monotonic()
        job = {
            "label": row.label,
            "program": str(program_folder(self.options.out, row.source)),
            "record": record_key(self._records[row.source.name]),
            "target": row.target.name,
            "precision": row.precision,
            "keep_float": list(self.options.keep_float),
        }
        try:
            answer = worker.submit(job, lambda stage: say(f"{row.label}: {stage}"))
        except ConverterCrash as crash:
            answer = {"error": error_to_json(crash)}
        if "error" in answer:
            return self._failed(row, "blame", answer["error"])
        self.reports[row.label] = answer["result"]
        return outcomes.bare(row, "ok", seconds=time.monotonic() - started)


def blame(options: Options) -> int:
    """Measure, print a table per artifact, and write ``--json``."""
    run = Blame(options)
    rows = run.run()
    print("\n\n".join(_section(row, run.reports) for row in rows), flush=True)
    if options.json is not None:
        failures = [r for r in rows if r["error"] is not None]
        value = {"schema_version": 1, "reports": list(run.reports.values()), "failures": failures}
        write_atomic(options.json, json_text(value) + "\n")
    return run.exit_code


def _section(row: Mapping[str, Any], reports: Mapping[str, Any]) -> str:
    label = f"{row['model']} {row['target']} {row['precision']}"
    if label in reports:
        return f"{label}\n{text(reports[label])}"
    return f"{label}: {row['status']}" + (f": {error_line(row['error'])}" if row["error"] else "")


def session(argv: Sequence[str]) -> int:
    """The ``blame`` session."""
    return run_session("blame", argv, blame, empty={"reports": [], "failures": []})


if __name__ == "__main__":
    main(lambda: session(sys.argv[1:]))
