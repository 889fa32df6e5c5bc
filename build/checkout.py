"""Which revision of the sources this checkout is. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from build import shell
from build.cache import ROOT
from build.errors import MissingToolError

#: what decides artifacts, bundles and measurements, for "is this checkout's code the revision's?"
_CODE = ("build", "targets", "models", "device_bench", "pyproject.toml", "constraints.txt")


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """``revision``: the commit; None where git can't tell. ``modified``: whether the code differs from it."""

    revision: str | None
    modified: bool | None

    def to_json(self) -> dict[str, Any]:
        """For a manifest or a run's record."""
        return asdict(self)


def checkout() -> Checkout:
    """Of this checkout."""
    # It may belong to another user than the one who bundles from it.
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    try:
        revision = shell.run([*git, "rev-parse", "HEAD"]).stdout.strip()
        changed = shell.run([*git, "status", "--porcelain", "--", *_CODE]).stdout.strip()
    except MissingToolError:
        return Checkout(revision=None, modified=None)
    return Checkout(revision=revision, modified=bool(changed))
