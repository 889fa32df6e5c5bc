"""``python -m build SESSION [--platform P] [options]``: what the ``build`` sessions of nox run."""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Any

from build import options as cli
from build.driver import Build, default_targets
from build.errors import EdgeportError, InputError
from build.log import fail
from build.protocol import error_to_json
from build.summary import table, write_json
from targets.registry import all_targets, platforms


def main(argv: list[str]) -> int:
    """Build and report; returns the exit code."""
    session, *rest = argv or ["build"]
    platform = session.removeprefix("build-") if session != "build" else None
    if platform is not None and platform not in platforms():
        fail(InputError(f"no platform is named '{platform}'", remedy=f"Platforms: {', '.join(platforms())}."))
        return InputError.exit_code
    names = default_targets(platform, all_targets())
    if "--help" in rest or "-h" in rest:
        cli.parser(session, names).print_help()
        return 0
    rows: list[dict[str, Any]] = []
    error: EdgeportError | None = None
    options = None
    code = 0
    try:
        options = cli.parse(session, names, rest)
        build = Build(options)
        rows = build.run()
        code = build.exit_code
    except EdgeportError as raised:
        error, code = raised, raised.exit_code
        if "--debug" in rest:
            traceback.print_exc()
        fail(raised)
    if rows:
        print(table(rows), flush=True)
    if options is not None and options.json is not None:
        write_json(options.json, rows, error_to_json(error) if error else None)
    return code


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    # A shell that starts us in the background hands SIGINT down as ignored; whoever sends it means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
