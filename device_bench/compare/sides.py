"""What ``A`` and ``B`` of ``nox -s compare -- A B`` may be."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from build.errors import InputError
from build.shell import transfer
from device_bench.store import Cell, Query, ResultStore, cli, open_results, plain, versions

FORMS = (
    "a run (its folder, or its name below --results: run-…), a folder or URL of results, device:NAME, "
    "version:[NAME=]VALUE, or branch:REF[:FOLDER]"
)
_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two.

    Attributes:
        text: as it was written.
        cells: for each key, of the newest run that has it.
    """

    text: str
    kind: Literal["run", "results", "device", "version", "branch"]
    store: ResultStore
    cells: tuple[Cell, ...]


class Stores:
    """Results that are open while both sides are read: each place once."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._opened: dict[str, ResultStore] = {}

    def open(self, place: str | Path) -> ResultStore:
        """See :func:`device_bench.store.open_results`."""
        name = str(place) if "://" in str(place) else str(Path(place).resolve())
        if name not in self._opened:
            self._opened[name] = open_results(place)
            self._stack.callback(self._opened[name].close)
        return self._opened[name]

    def temporary(self) -> Path:
        """A folder that is removed in the end."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeport-branch-")))


def open_side(text: str, results: str, query: Query, stores: Stores) -> Side:
    """What a word of the command line means.

    Args:
        results: ``--results``: where names of runs, devices and versions are looked up.
        query: what both sides are narrowed to.
        stores: open for as long as the side is read.

    Raises:
        InputError: it is none of these, or nothing was measured there.
    """
    kind, store, narrowed = _resolve(text, results, query, stores)
    if kind != "run":  # who names a long run means it
        narrowed = replace(narrowed, sustained=False)
    cells = tuple(store.latest(narrowed))
    if not cells:
        cli.report_problems([store], below=f"{plain(narrowed.runs[0])}/" if kind == "run" else "")
        raise InputError(f"'{plain(text, 120)}' has no measurements that fit", remedy=_known(store, kind))
    return Side(text=text, kind=kind, store=store, cells=cells)


def _resolve(
    text: str, results: str, query: Query, stores: Stores
) -> tuple[Literal["run", "results", "device", "version", "branch"], ResultStore, Query]:
    word, colon, rest = text.partition(":")
    if colon and word == "device":
        if query.devices:
            raise InputError("--device narrows both sides to one device: leave it out to compare two devices")
        return "device", stores.open(results), replace(query, devices=(rest,))
    if colon and word == "version":
        versions.check(rest)
        return "version", stores.open(results), replace(query, version=rest)
    if colon and word == "branch":
        return "branch", _branch(rest, stores), query
    if "://" in text:
        return "results", stores.open(text), query
    folder = Path(text)
    if folder.is_dir():
        place = folder.resolve()
        if place.name.startswith("run-"):
            return "run", stores.open(place.parent), replace(query, runs=(place.name,))
        if any(place.glob("run-*")):
            return "results", stores.open(place), query
        raise InputError(f"'{plain(text, 120)}' is neither a run of the lab nor a folder with such runs")
    if text.startswith("run-") and "/" not in text:
        store = stores.open(results)
        found = [run.name for run in store.runs() if run.name.startswith(text)]
        if text in found or len(found) == 1:
            return "run", store, replace(query, runs=(text if text in found else found[0],))
        if not found:
            cli.report_problems([store], below=plain(text))
        raise InputError(
            f"{'several runs begin' if found else 'no run begins'} with '{plain(text, 80)}'",
            remedy=_known(store, "run"),
        )
    raise InputError(f"'{plain(text, 120)}' is nothing that can be compared", remedy=f"Name {FORMS}.")


def _known(store: ResultStore, kind: str) -> str:
    if kind == "device":
        names: Sequence[str] = sorted({m.key.device for m in store.measurements()})
        return f"Devices there: {', '.join(plain(n, 60) for n in names[:10]) or 'none'}."
    names = [run.name for run in store.runs()][-5:]
    return f"The newest runs there: {', '.join(plain(n, 60) for n in names) or 'none'}."


def _take_out(archive: Path, folder: Path) -> None:
    """Regular files only, below the folder: extraction filters came with Python 3.11.4, Debian 12 has 3.11.2.

    Raises:
        tarfile.TarError: a path leads out of the folder.
        OSError: the disk is full or not writable.
    """
    with tarfile.open(archive) as tree:
        for member in tree:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise tarfile.TarError(f"'{member.name}' leads out of the folder")
            content = tree.extractfile(member) if member.isreg() else None
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with content, (folder / path).open("wb") as stream:
                    shutil.copyfileobj(content, stream)


def _branch(text: str, stores: Stores) -> ResultStore:
    """The results that are committed at a revision, taken out of git into a temporary folder."""
    ref, _, folder = text.partition(":")
    folder = folder or "results"
    if not ref or ref.startswith("-") or folder.startswith(("-", "/")) or ".." in folder.split("/"):
        raise InputError(f"branch:{plain(text, 100)}: not understood", remedy="Write branch:REF or branch:REF:FOLDER.")
    place = stores.temporary()
    archive = place / "tree.tar"
    with archive.open("wb") as stream:
        done = transfer(
            ["git", "-C", Path.cwd(), "archive", "--format=tar", f"{ref}:./{folder}"], stdout=stream, timeout=_SECONDS
        )
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise InputError(
            f"branch '{plain(ref, 80)}' has no folder '{plain(folder, 80)}': {plain(why[-1] if why else 'git failed')}",
            remedy="Commit the results folder there, or name another: branch:REF:FOLDER.",
        )
    results = place / "results"
    results.mkdir()
    try:
        _take_out(archive, results)
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"the results of branch '{plain(ref, 80)}' cannot be used: {plain(error)}") from error
    return stores.open(results)
