"""The C++ runtimes inside PyPI wheels, for another architecture than this host's if need be."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from build import envs, shell
from build.cache import lock, put_folder, staging
from build.errors import MissingToolError
from build.log import say


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Where a runtime's C++ files lie in its wheel.

    Attributes:
        package: the distribution; its version is the pin of the dependency group ``group``.
        root: the wheel's folder that the harness is built against.
        parts: paths below ``root`` that are kept.
    """

    package: str
    group: str
    root: str
    parts: tuple[str, ...]

    @property
    def version(self) -> str:
        """The pinned version."""
        for line in envs.requirements(self.group):
            name, _, version = line.partition("==")
            if name == self.package:
                return version
        raise MissingToolError(f"dependency group '{self.group}' does not pin '{self.package}'")


RUNTIMES = {
    "executorch": Runtime(
        package="executorch", group="executorch", root="executorch", parts=("include/", "lib/", "share/cmake/")
    ),
    "litert": Runtime(package="ai-edge-litert", group="litert", root="ai_edge_litert", parts=("libLiteRt.so",)),
}

#: pip's platform tags, newest first: the runtimes' wheels carry different ones.
_TAGS = ("manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
#: the interpreter that the wheels are for does not matter to their C++ files; the newest that all are built for.
_PYTHON = "3.11"


def fetch(runtime: Runtime, arch: str) -> Path:
    """The runtime's folder for ``arch`` (``x86_64``, ``aarch64``), downloaded and unpacked when it is not here yet.

    Raises:
        MissingToolError: pip could not download the wheel.
    """
    home = envs.HOME / "edgeport-wheels"
    place = home / f"{runtime.package}-{runtime.version}-{arch}"
    if place.is_dir():
        return place
    python = envs.ensure("harness").python
    with lock(home, place.name), staging(home) as folder:
        if place.is_dir():  # another build may have fetched it while we waited
            return place
        say(f"downloading {runtime.package} {runtime.version} for {arch}")
        folder.joinpath("download").mkdir()
        command = [str(python), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", _PYTHON]
        command += [word for tag in _TAGS for word in ("--platform", f"{tag}_{arch}")]
        command += ["--dest", str(folder / "download"), f"{runtime.package}=={runtime.version}"]
        shell.run(command)
        (wheel,) = folder.joinpath("download").glob("*.whl")
        _unpack(wheel, runtime, folder / "files")
        put_folder(folder / "files", place)
    return place


def _unpack(wheel: Path, runtime: Runtime, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = entry.filename.removeprefix(runtime.root + "/")
            if path == entry.filename or entry.is_dir() or not path.startswith(runtime.parts):
                continue
            target = (into / path).resolve()
            if not target.is_relative_to(into.resolve()):
                raise MissingToolError(f"the wheel of {runtime.package} holds a path outside itself: '{path}'")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as stream:
                shutil.copyfileobj(source, stream)
    missing = [part for part in runtime.parts if not (into / part).exists()]
    if missing:
        raise MissingToolError(f"the wheel of {runtime.package} {runtime.version} has no {', '.join(missing)}")
