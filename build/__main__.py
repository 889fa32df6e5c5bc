"""``python -m build SESSION [options]``: what the ``build`` sessions of nox run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from build.driver import Build
from build.entry import main, run_session
from build.options import Options
from build.summary import table, write_json


def build(options: Options) -> int:
    """Build and report; returns the exit code."""
    run = Build(options)
    rows = run.run()
    print(table(rows), flush=True)
    if options.json is not None:
        write_json(options.json, rows)
    return run.exit_code


def session(argv: Sequence[str]) -> int:
    """``build``, or ``build-PLATFORM``."""
    name, *rest = argv or ["build"]
    platform = name.removeprefix("build-") if name != "build" else None
    return run_session(name, rest, build, empty={"artifacts": []}, platform=platform)


if __name__ == "__main__":
    main(lambda: session(sys.argv[1:]))
