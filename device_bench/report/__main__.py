"""``python -m device_bench.report [options]``: what ``nox -s report`` runs."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from build.cache import write_atomic
from build.entry import main as run_as_process
from build.errors import InputError, MissingToolError
from build.log import say
from device_bench.report import as_json, markdown, page, sources
from device_bench.report.data import Report
from device_bench.report.gather import Inputs, gather
from device_bench.report.text import clean
from device_bench.store import cli

_RESULTS, _OUT = "results", "out"
#: written below the output folder when no file is named
_DEFAULTS = {"html": "report.html", "markdown": "report.md", "json": "report.json"}
#: problems that are named on stderr; all of them are in the report.
_NAMED = 5


def parser() -> cli.Parser:
    """The options; ``--help`` prints them."""
    p = cli.parser("report", "What was built and measured as one HTML file, and the same as Markdown and JSON.")
    p.set_defaults(results=None)
    p.add_argument("--out", metavar="DIR", default=_OUT, help=f"where builds put their artifacts (default: {_OUT})")
    p.add_argument("--budgets", metavar="FILE.toml", help="limits, in place of the models' own and of the runs'")
    p.add_argument("--device-class", metavar="NAME", default="*", help="whose budgets apply beside everyone's")
    for name, file in _DEFAULTS.items():
        p.add_argument(f"--{name}", metavar="FILE", help=f"(default, when no file is named: OUT/report/{file})")
    return p


def _run(raw: argparse.Namespace) -> int:
    if importlib.util.find_spec("jinja2") is None:
        raise MissingToolError("the report needs the package jinja2", remedy="Run it as: nox -s report")
    out = Path(raw.out).resolve()
    files = _files(raw, out)
    report = gather(_inputs(raw, out))
    _fitting(raw, report)
    if not report.rows and not report.problems:
        raise InputError(
            "there is nothing to report: no artifact was built and nothing was measured",
            remedy="nox -s build, then nox -s bench-local; or name folders with --out and --results.",
        )
    _say_problems(report)
    renderers = {"html": page.render, "markdown": markdown.render, "json": as_json.render}
    texts = {name: renderers[name](report) for name in files}  # nothing is written unless all of it can be made
    for name, path in files.items():
        write_atomic(path, texts[name])
    found = report.verdicts()
    print(
        f"{len(report.rows)} rows on {len(report.devices)} devices: {found['PASS']} PASS, {found['FAIL']} FAIL, "
        f"{found['INCONCLUSIVE']} INCONCLUSIVE, {found['none']} without a budget; {len(report.findings)} findings"
    )
    for name, path in files.items():
        print(f"{name}: {os.path.relpath(path)} ({len(texts[name].encode()) / 1000:,.0f} kB)")
    return 0


def _files(raw: argparse.Namespace, out: Path) -> dict[str, Path]:
    """What to write where.

    Raises:
        InputError: two of them are one file, or one would replace results.
    """
    cli.check_outputs(raw.results or _RESULTS, {f"--{name}": getattr(raw, name) for name in _DEFAULTS})
    files = {name: Path(given).resolve() for name in _DEFAULTS if (given := getattr(raw, name))}
    return files or {name: out / "report" / file for name, file in _DEFAULTS.items()}


def _fitting(raw: argparse.Namespace, report: Report) -> None:
    """Say which of the names asked for nothing has.

    Raises:
        InputError: nothing fits at all.
    """
    asked = [
        (name, clean(value)) for name in ("model", "target", "precision", "device") for value in getattr(raw, name)
    ]
    if asked and not report.rows:
        _say_problems(report)
        words = [f"--{name} {value}" for name, value in asked] + ([f"--since {raw.since}"] if raw.since else [])
        raise InputError(
            f"nothing fits {' '.join(words)}: no such artifact was built or measured",
            remedy="Run without these options to see what there is.",
        )
    there = {("device", r.measured.device) for r in report.rows if r.measured}
    there |= {(name, getattr(r, name)) for r in report.rows for name in ("model", "target", "precision")}
    for name, value in asked:
        if (name, value) not in there:
            say(f"--{name} {value}: nothing that is shown has it")


def _inputs(raw: argparse.Namespace, out: Path) -> Inputs:
    results = raw.results
    if results is None:
        results = _RESULTS if Path(_RESULTS).is_dir() else None
        if results is None:
            say(f"there is no folder '{_RESULTS}': the report holds no measurements")
    if not out.is_dir():
        if raw.out != _OUT:
            raise InputError(f"--out {raw.out}: no such folder")
        say(f"there is no folder '{_OUT}': the report holds no builds")
    budgets = Path(raw.budgets).resolve() if raw.budgets else None
    if budgets is not None and not budgets.is_file():
        raise InputError(f"--budgets {raw.budgets}: no such file")
    return sources.read(
        results,
        out if out.is_dir() else None,
        budgets=budgets,
        device_class=raw.device_class,
        query=cli.query(raw),
    )


def _say_problems(report: Report) -> None:
    for problem in report.problems[:_NAMED]:
        say(f"skipped {problem.path}: {problem.message}")
    if len(report.problems) > _NAMED:
        say(f"skipped {len(report.problems) - _NAMED} more files; the report names them all")


def main(argv: list[str]) -> int:
    """Make the report; returns the exit code."""
    return cli.run(argv, parser, _run)


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
