"""``python -m device_bench.store RUN PLACE``: what ``nox -s publish-results`` runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from build.entry import main as run_as_process
from build.errors import InputError
from device_bench.store import cli, plain
from device_bench.store.keep import publish


def parser() -> cli.Parser:
    """The options; ``--help`` prints them."""
    p = cli.Parser(
        prog="nox -s publish-results --",
        description="Copy a run, and the manifests beside it, to where a team keeps its results. Nothing is replaced.",
        allow_abbrev=False,
    )
    p.add_argument("run", metavar="RUN", help="its folder: results/run-…")
    p.add_argument("place", metavar="DIR|URL", help="the folder or URL of the team's results")
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return p


def _publish(raw: argparse.Namespace) -> int:
    run = Path(raw.run).resolve()
    if "://" not in raw.place and Path(raw.place).resolve() == run.parent:
        raise InputError(f"'{plain(raw.run)}' lies there already")
    new = publish(run, raw.place)
    print(f"{plain(run.name)}: {new} new files at {plain(raw.place)}", flush=True)
    return 0


def main(argv: list[str]) -> int:
    """Publish; returns the exit code."""
    return cli.run(argv, parser, _publish)


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
