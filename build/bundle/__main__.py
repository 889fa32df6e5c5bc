"""``python -m build.bundle SESSION …``: what the sessions that bundle, check and release run."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence

from build import options as cli
from build.bundle import options as parsing
from build.bundle.make import bundle
from build.entry import main
from build.errors import EdgeportError, InputError
from build.log import fail
from targets.registry import all_targets


def _bundle(session: str, argv: Sequence[str]) -> int:
    return bundle(parsing.parse_bundle(session, argv))


def _bundle_help(session: str) -> str:
    shared = cli.parser(session, tuple(all_targets())).format_help()
    return f"{parsing.bundle_parser(session).format_help()}\nAnd those of a build:\n\n{shared}"


_SESSIONS: dict[str, tuple[Callable[[str, Sequence[str]], int], Callable[[str], str]]] = {
    "bundle": (_bundle, _bundle_help),
}


def session(argv: Sequence[str]) -> int:
    """Run the session named by the first argument; returns the exit code."""
    name, *rest = argv or [""]
    found = _SESSIONS.get("bundle" if name.startswith("bundle-") else name)
    try:
        if found is None:
            raise InputError(f"no session is named '{name}'", remedy=f"Sessions: {', '.join(_SESSIONS)}.")
        run, usage = found
        if "--help" in rest or "-h" in rest:
            print(usage(name))
            return 0
        return run(name, rest)
    except EdgeportError as error:
        if "--debug" in rest:
            traceback.print_exc()
        fail(error)
        return error.exit_code


if __name__ == "__main__":
    main(lambda: session(sys.argv[1:]))
