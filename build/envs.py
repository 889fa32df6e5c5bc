"""One environment per dependency group, made when first needed. Standard library only.

nox gives one environment to one session; a build needs several at once, in parallel. So the sessions ask for them
here: ``.nox/edgeport-GROUP``, with a stamp that says what it was made from. ``EDGEPORT_PYTHON`` names one interpreter
that already holds every group (the tests' environment) and is then used for all of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import shell
from build.cache import lock, write_atomic
from build.errors import INTERRUPTED_EXIT, EdgeportError, InterruptedBuildError, MissingToolError
from build.log import fail, say

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".nox"
CONSTRAINTS = ROOT / "constraints.txt"
_SUPPORTED = ((3, 11), (3, 12))
_LIST = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An interpreter that holds a group's packages. ``packages``: normalised distribution name -> version."""

    python: Path
    packages: Mapping[str, str]

    def versions(self, names: Sequence[str]) -> dict[str, str]:
        """Versions of the named distributions (``absent`` for one that is not installed), and Python's."""
        found = {n: self.packages.get(_normal(n), "absent") for n in names}
        return {**found, "python": self.packages.get("python", platform.python_version())}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@functools.cache
def _groups(text: str) -> Mapping[str, Any]:
    groups: dict[str, Any] = tomllib.loads(text)["dependency-groups"]
    return groups


def requirements(group: str) -> list[str]:
    """The pins of a dependency group in pyproject.toml, included groups resolved."""
    groups = _groups((ROOT / "pyproject.toml").read_text())

    def expand(name: str) -> list[str]:
        lines: list[str] = []
        for entry in groups[name]:
            lines += expand(entry["include-group"]) if isinstance(entry, dict) else [entry]
        return lines

    return list(dict.fromkeys(expand(group)))


def _wanted(group: str) -> str:
    """Alike in every process: a session's own environment asks for others too, and has another ``sys.prefix``."""
    pins = CONSTRAINTS.read_bytes() if CONSTRAINTS.exists() else b""
    text = json.dumps(
        [requirements(group), platform.python_version(), sys.base_prefix, hashlib.sha256(pins).hexdigest()]
    )
    return hashlib.sha256(text.encode()).hexdigest()


def ready(group: str) -> Environment | None:
    """The environment, if it is there and made from today's pins; None otherwise. Starts no process."""
    override = os.environ.get("EDGEPORT_PYTHON")
    if override:
        return _shared(Path(override))
    folder = HOME / f"edgeport-{group}"
    try:
        stamp = json.loads((folder / "edgeport.json").read_text())
    except (OSError, ValueError):
        return None
    python = folder / "bin" / "python"
    if stamp.get("made_from") != _wanted(group) or not python.exists():
        return None
    return Environment(python=python, packages=stamp["packages"])


@functools.cache  # hundreds of files are read
def _shared(python: Path) -> Environment:
    if python == Path(sys.executable):
        import importlib.metadata

        packages = {_normal(d.name): d.version for d in importlib.metadata.distributions()}
        return Environment(python=python, packages={**packages, "python": platform.python_version()})
    return Environment(python=python, packages=_packages(python))


def _packages(python: Path) -> dict[str, str]:
    listed: dict[str, str] = json.loads(shell.run([python, "-c", _LIST]).stdout)
    version = shell.run([python, "-c", "import platform; print(platform.python_version())"]).stdout.strip()
    return {**{_normal(name): v for name, v in listed.items()}, "python": version}


def ensure(group: str) -> Environment:
    """The environment of a group, installed first when it is missing or its pins have changed.

    Raises:
        MissingToolError: this Python is not supported, or pip could not install the group.
    """
    found = ready(group)
    if found is not None:
        return found
    if sys.version_info[:2] not in _SUPPORTED:
        raise MissingToolError(
            f"Python {platform.python_version()} is not supported by every toolchain",
            remedy=f"Install nox with Python {' or '.join('.'.join(map(str, v)) for v in _SUPPORTED)}.",
        )
    with lock(HOME, group):
        found = ready(group)  # another build may have made it while we waited
        return found if found is not None else _make(group)


def _make(group: str) -> Environment:
    folder = HOME / f"edgeport-{group}"
    say(f"installing environment '{group}' (the first time takes a minute or two)")
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    maker = _maker()
    shell.run([maker, "-m", "virtualenv", "--quiet", "--no-download", folder])
    pins = ["-c", str(CONSTRAINTS)] if CONSTRAINTS.exists() else []
    shell.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins, *requirements(group)])
    packages = _packages(python)
    stamp = {"made_from": _wanted(group), "made_by": maker, "packages": packages}
    write_atomic(folder / "edgeport.json", json.dumps(stamp, indent=1))
    return Environment(python=python, packages=packages)


def _maker() -> str:
    """The interpreter that makes environments: nox's own, which has virtualenv. A group's environment says which."""
    try:
        return str(json.loads((Path(sys.prefix) / "edgeport.json").read_text())["made_by"])
    except (OSError, ValueError, KeyError):
        return sys.executable


def main(argv: list[str] | None = None) -> int:
    """``python -m build.envs GROUP``: make the environment and print its interpreter's path."""
    (group,) = argv if argv is not None else sys.argv[1:]
    try:
        print(ensure(group).python)
    except EdgeportError as error:
        fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        fail(InterruptedBuildError("interrupted"))
        return INTERRUPTED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
