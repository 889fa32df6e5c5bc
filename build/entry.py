"""What the sessions' entry points share: options, one clear line for an error, signals, the exit code."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from build import options as cli
from build.driver import default_targets
from build.errors import INTERRUPTED_EXIT, EdgeportError, InputError
from build.log import fail
from targets.registry import all_targets, platforms


def run_session(
    session: str,
    argv: Sequence[str],
    body: Callable[[cli.Options], int],
    *,
    platform: str | None = None,
    failed: Callable[[cli.Options, EdgeportError], None] = lambda options, error: None,
) -> int:
    """Parse, run, report.

    Args:
        session: as nox names it.
        body: the session's work; returns the exit code.
        platform: whose targets are the default; all of them without one.
        failed: told of an error that ends the session, when the options could be read. Where it cannot even write that
            down, the error itself has still been said.
    """
    if platform is not None and platform not in platforms():
        fail(InputError(f"no platform is named '{platform}'", remedy=f"Platforms: {', '.join(platforms())}."))
        return InputError.exit_code
    names = default_targets(platform, all_targets())
    if "--help" in argv or "-h" in argv:
        cli.parser(session, names).print_help()
        return 0
    options: cli.Options | None = None
    try:
        options = cli.parse(session, names, list(argv))
        return body(options)
    except EdgeportError as error:
        if "--debug" in argv:
            traceback.print_exc()
        fail(error)
        if options is not None:
            _tell(failed, options, error)
        return error.exit_code


def _tell(failed: Callable[[cli.Options, EdgeportError], None], options: cli.Options, error: EdgeportError) -> None:
    try:
        failed(options, error)
    except EdgeportError as second:
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
