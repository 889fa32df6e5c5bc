"""``python -m build.bundle SESSION …``: what the sessions that bundle, check and release run."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence

from build import options as cli
from build.bundle import options as parsing
from build.bundle.make import bundle
from build.bundle.release import history, promote, rollback
from build.bundle.reproduce import reproduce
from build.bundle.verify import verify_bundle
from build.entry import main
from build.errors import EdgeportError, InputError
from build.log import fail
from targets.registry import all_targets


def _bundle(session: str, argv: Sequence[str]) -> int:
    return bundle(parsing.parse_bundle(session, argv))


def _bundle_help(session: str) -> str:
    shared = cli.parser(session, tuple(all_targets())).format_help()
    return f"{parsing.bundle_parser(session).format_help()}\nAnd those of a build:\n\n{shared}"


def _release_help(session: str) -> str:
    return parsing.release_parser(session).format_help()


_SESSIONS: dict[str, tuple[Callable[[str, Sequence[str]], int], Callable[[str], str]]] = {
    "bundle": (_bundle, _bundle_help),
    "verify-bundle": (
        lambda name, argv: verify_bundle(parsing.parse_verify(name, argv)),
        lambda name: parsing.verify_parser(name).format_help(),
    ),
    "reproduce": (
        lambda name, argv: reproduce(parsing.parse_reproduce(name, argv)),
        lambda name: parsing.reproduce_parser(name).format_help(),
    ),
    "promote": (lambda name, argv: promote(parsing.parse_release(name, argv)), _release_help),
    "rollback": (lambda name, argv: rollback(parsing.parse_release(name, argv)), _release_help),
    "history": (lambda name, argv: history(parsing.parse_release(name, argv)), _release_help),
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
