"""What the sessions that read results have in common: options that narrow, numbers, and the end. Standard library."""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from build.cache import write_atomic
from build.errors import EdgeportError, InputError
from build.log import fail, say
from device_bench.store.files import MANIFESTS
from device_bench.store.index import NAME
from device_bench.store.results import ResultStore
from device_bench.store.rows import Problem, Query
from device_bench.store.text import plain

#: skipped files that are named on stderr; the rest is counted.
_NAMED = 10
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)")


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors of ours."""

    def error(self, message: str) -> NoReturn:
        """See argparse."""
        raise InputError(message, remedy="Run with -- --help to see the options.")


def parser(session: str, description: str) -> Parser:
    """A parser with what every such session takes."""
    p = Parser(prog=f"nox -s {session} --", description=description, allow_abbrev=False)
    p.add_argument("--results", metavar="DIR|URL", default="results", help="where results lie (default: results)")
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")
    which = p.add_argument_group("which measurements (each repeatable)")
    for name in ("model", "target", "precision", "device"):
        which.add_argument(f"--{name}", action="append", metavar="NAME", default=[])
    which.add_argument(
        "--since", metavar="DATE", help="started then or later: 2026-11-29 or 2026-11-29T20:00:00Z (UTC)"
    )
    return p


def query(raw: argparse.Namespace, *, version: str | None = None) -> Query:
    """What the options narrow to.

    Raises:
        InputError: ``--since`` is no date.
    """
    return Query(
        models=tuple(raw.model),
        targets=tuple(raw.target),
        precisions=tuple(raw.precision),
        devices=tuple(raw.device),
        since=raw.since,
        version=version,
    )


def share(text: str, option: str, *, below: float) -> float:
    """``2%`` or ``0.02``.

    Raises:
        InputError: no number from 0 to ``below``, both left out.
    """
    found = _SHARE.fullmatch(text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 < value < below:
        raise InputError(f"{option} {text[:40]}: needs a share between 0 and {below:g}, as 2% or 0.02")
    return value


def report_problems(stores: Sequence[ResultStore], *, below: str = "") -> list[Problem]:
    """Say on stderr what was skipped, and why; all of it is returned.

    Args:
        below: only what lies below this path: ``run-…/``.
    """
    found = sorted({p for store in stores for p in store.problems() if p.path.startswith(below)})
    for problem in found[:_NAMED]:
        say(f"skipped {problem.path}: {problem.reason}")
    if len(found) > _NAMED:
        say(f"skipped {len(found) - _NAMED} more files")
    return found


def check_outputs(results: str, outputs: Mapping[str, str | None]) -> None:
    """Whether files may be written where they were asked for; called before anything is.

    Args:
        results: ``--results``.
        outputs: option -> file; None where it was not given.

    Raises:
        InputError: two of them are one file, or one would replace results.
    """
    seen: dict[Path, str] = {}
    for option, text in outputs.items():
        if text is None:
            continue
        path = Path(text).resolve()
        if path in seen:
            raise InputError(f"{seen[path]} and {option} name the same file: '{plain(text, 120)}'")
        seen[path] = option
        if _is_of_results(path, results):
            raise InputError(
                f"{option} '{plain(text, 120)}' lies among the results, which are never replaced",
                remedy="Name a file outside of runs.",
            )


def _is_of_results(path: Path, results: str) -> bool:
    """Whether a path is one of the index, of a run, or of the manifests kept with results."""
    if path.name.startswith(NAME):
        return True
    if any(p.name.startswith("run-") and (p / "run.json").exists() for p in path.parents):
        return True
    if "://" in results:
        return False
    place = Path(results).resolve()
    first = path.relative_to(place).parts[:-1][:1] if path.is_relative_to(place) else ()
    return any(name.startswith("run-") or name == MANIFESTS for name in first)


def write_text(path: str | None, text: str) -> None:
    """Write a file that was asked for: whole or not at all."""
    if path is not None:
        write_atomic(Path(path).resolve(), text)


def run(argv: Sequence[str], make: Callable[[], Parser], body: Callable[[argparse.Namespace], int]) -> int:
    """Parse, run, report an error as one line; returns the exit code."""
    if "--help" in argv or "-h" in argv:
        make().print_help()
        return 0
    try:
        return body(make().parse_args(list(argv)))
    except EdgeportError as error:
        if "--debug" in argv:
            traceback.print_exc(file=sys.stderr)
        fail(error)
        return error.exit_code
