"""What the sessions' entry points share: options, one clear line for an error, signals, the exit code."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from build import options as cli
from build.cache import write_atomic
from build.driver import default_targets
from build.errors import INTERRUPTED_EXIT, EdgeportError, InputError, StorageError
from build.log import fail
from build.protocol import error_to_json
from targets.registry import all_targets, platforms

#: of the sessions' summaries
SCHEMA_VERSION = 1


def run_session(
    session: str,
    argv: Sequence[str],
    body: Callable[[cli.Options], int],
    *,
    empty: Mapping[str, Any],
    platform: str | None = None,
) -> int:
    """Parse, run, report. What ends the session stands in ``--json`` too: never yesterday's answer.

    Args:
        session: as nox names it.
        body: the session's work; returns the exit code.
        empty: what ``--json`` holds beside its schema's version and the error, where there is nothing to show.
        platform: whose targets are the default; all of them without one.
    """
    if platform is not None and platform not in platforms():
        fail(InputError(f"no platform is named '{platform}'", remedy=f"Platforms: {', '.join(platforms())}."))
        return InputError.exit_code
    names = default_targets(platform, all_targets())
    if "--help" in argv or "-h" in argv:
        cli.parser(session, names).print_help()
        return 0
    try:
        return body(cli.parse(session, names, list(argv)))
    except EdgeportError as error:
        if "--debug" in argv:
            traceback.print_exc()
        fail(error)
        _write_down(argv, empty, error)
        return error.exit_code
    except BaseException as error:  # an interruption, or a fault of ours: it goes on as it is
        _write_down(argv, empty, error)
        raise


def _write_down(argv: Sequence[str], empty: Mapping[str, Any], error: BaseException) -> None:
    """The error in ``--json``, wherever that names a file; bad options beside it do not matter."""
    file = cli.json_of(argv)
    if file is None:
        return
    value = {"schema_version": SCHEMA_VERSION, **empty, "error": error_to_json(error)}
    try:
        write_atomic(file, json.dumps(value, indent=1) + "\n")
    except StorageError as second:
        if str(second) != str(error):  # the summary could not be written: that was the error to begin with
            fail(second)


def main(run: Callable[[], int]) -> None:
    """Run a session's entry point as a process: a signal ends it with 130 and one line."""

    def terminate(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    # A shell that starts us in the background hands SIGINT down as ignored; whoever sends it means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(run())
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT)
