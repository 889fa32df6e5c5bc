"""The plain files of a results folder: a folder of this machine, or what fsspec reaches. Nothing is ever written.

What counts, ``/`` between the parts::

    run-*/run.json            what a run set out to measure
    run-*/summary.json        what it came to
    run-*/DEVICE/*.json       one measurement each
    manifests/*.json          manifests of artifacts that were measured (see ``keep``)

Names that begin with a dot (locks, the index, files being written) are not looked at; all else is a problem.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from build.errors import InputError, MissingToolError, StorageError
from device_bench.measurement import MAX_BYTES
from device_bench.store.rows import Problem
from device_bench.store.text import plain

Kind = Literal["run", "summary", "measurement", "manifest"]
MANIFESTS = "manifests"


def kind_of(path: str) -> Kind | None:
    """What a path below a results folder is; None: nothing of the lab."""
    parts = path.split("/")
    if not path.endswith(".json") or any(p.startswith(".") for p in parts):
        return None
    if len(parts) == 2 and parts[0] == MANIFESTS:
        return "manifest"
    if parts[0].startswith("run-"):
        if len(parts) == 2 and parts[1] in ("run.json", "summary.json"):
            return "run" if parts[1] == "run.json" else "summary"
        if len(parts) == 3:
            return "measurement"
    return None


#: what changes whenever a file does: size, times, inode; or an object's tag.
Stamp = tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What lies in a results folder now.

    Attributes:
        folders: folder below the place (``""``: itself; ``run-…/DEVICE``) -> name of a file that counts -> its stamp.
    """

    folders: Mapping[str, Mapping[str, Stamp]]
    problems: tuple[Problem, ...] = field(default_factory=tuple)

    def digests(self) -> dict[str, str]:
        """Folder -> a text that changes whenever one of its files does: a glance instead of a look at each."""
        return {folder: _digest(stamps) for folder, stamps in self.folders.items()}

    def paths(self) -> list[str]:
        """Every file that counts."""
        return [f"{folder}/{name}" for folder, names in self.folders.items() for name in names]


def _digest(stamps: Mapping[str, Stamp]) -> str:
    return hashlib.sha256(repr(sorted(stamps.items())).encode()).hexdigest()


class Files(Protocol):
    """Where results lie."""

    @property
    def place(self) -> str:
        """Names it for people."""
        ...

    @property
    def identity(self) -> str:
        """Differs between two places, and when a place is moved or copied."""
        ...

    def listing(self) -> Listing:
        """Every file that counts."""
        ...

    def read(self, path: str) -> bytes | None:
        """A file's bytes, at most one more than a result may have; None when it is gone or cannot be read."""
        ...

    def is_there(self, path: str) -> bool:
        """Whether there is such a file now."""
        ...


class FolderFiles:
    """A folder. Symbolic links are not followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            found = root.stat()
        except OSError as error:
            raise InputError(f"results folder '{plain(root)}': {error.strerror or error}") from error
        if not stat.S_ISDIR(found.st_mode):
            raise InputError(f"'{plain(root)}' is not a folder of results")
        self.identity = f"{found.st_dev}:{found.st_ino}"

    @property
    def place(self) -> str:
        """See :class:`Files`."""
        return str(self.root)

    def listing(self) -> Listing:
        """See :class:`Files`."""
        folders: dict[str, Mapping[str, Stamp]] = {}
        problems: list[Problem] = []
        self._walk("", folders, problems)
        return Listing(folders=folders, problems=tuple(problems))

    def _walk(self, folder: str, folders: dict[str, Mapping[str, Stamp]], problems: list[Problem]) -> None:
        def problem(path: str, reason: str) -> None:
            problems.append(Problem(path=plain(path), reason=reason))

        of_device = folder.startswith("run-") and folder.count("/") == 1
        stamps: dict[str, Stamp] = {}
        below: list[str] = []
        try:
            with _opened(self.root / folder) as descriptor:
                for name in os.listdir(descriptor):
                    if name.startswith("."):
                        continue
                    path = f"{folder}/{name}" if folder else name
                    try:
                        if not name.isascii():
                            path.encode("utf-8")
                        # Relative to the open folder: for 100,000 files half the time that whole paths take.
                        info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    except UnicodeEncodeError:
                        problem(path, "its name is not text")
                        continue
                    except OSError:
                        continue  # it was removed since
                    if stat.S_ISREG(info.st_mode):
                        if (of_device and name.endswith(".json")) or kind_of(path) is not None:
                            stamps[name] = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
                        else:
                            problem(path, "it is no file of the lab")
                    elif stat.S_ISLNK(info.st_mode):
                        problem(path, "it is a symbolic link, which is not followed")
                    elif not stat.S_ISDIR(info.st_mode):
                        problem(path, "it is not a regular file")
                    elif path == MANIFESTS or (path.startswith("run-") and path.count("/") < 2):
                        below.append(path)
                    else:
                        problem(path, "it is no folder of the lab")
        except OSError as error:
            problem(folder or ".", f"it cannot be listed: {error.strerror or error}")
            return
        if stamps:
            folders[folder] = stamps
        for path in below:
            self._walk(path, folders, problems)

    def read(self, path: str) -> bytes | None:
        """See :class:`Files`."""
        try:
            with open(self.root / path, "rb", opener=_no_link) as stream:
                return stream.read(MAX_BYTES + 1)
        except OSError:
            return None

    def is_there(self, path: str) -> bool:
        """See :class:`Files`."""
        return os.path.lexists(self.root / path)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class UrlFiles:
    """What fsspec reaches: ``s3://bucket/results``."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise MissingToolError(
                f"cannot open '{plain(url)}': {plain(error)}", remedy="Install fsspec's driver for it (s3fs for s3://)."
            ) from error
        self._root = self._root.rstrip("/")
        self.place = plain(url)
        self.identity = url

    def listing(self) -> Listing:
        """See :class:`Files`."""
        try:
            self._fs.invalidate_cache()
            found: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True)
            there = bool(found) or self._fs.isdir(self._root)
        except OSError as error:
            raise StorageError(f"cannot list '{self.place}': {plain(error)}") from error
        if not there:
            raise InputError(f"there is nothing at '{self.place}'")
        folders: dict[str, dict[str, Stamp]] = {}
        problems: list[Problem] = []
        for full, info in found.items():
            path = full.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/")
            if any(p.startswith(".") for p in path.split("/")):
                continue
            if kind_of(path) is None:
                problems.append(Problem(path=plain(path), reason="it is no file of the lab"))
                continue
            # Object stores name an object's content by an ETag; others have a time at best.
            tags = [info.get(k) for k in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created")]
            folder, _, name = path.rpartition("/")
            stamp = (str(info.get("size")), *(str(t) for t in tags if t is not None))
            folders.setdefault(folder, {})[name] = stamp
        return Listing(folders=folders, problems=tuple(problems))

    def read(self, path: str) -> bytes | None:
        """See :class:`Files`."""
        try:
            return bytes(self._fs.cat_file(f"{self._root}/{path}", start=0, end=MAX_BYTES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read '{plain(path)}' at '{self.place}': {plain(error)}") from error

    def is_there(self, path: str) -> bool:
        """See :class:`Files`."""
        return bool(self._fs.exists(f"{self._root}/{path}"))


def open_files(place: str | Path) -> Files:
    """A folder's path, or a URL.

    Raises:
        InputError: there is no such folder.
        MissingToolError: fsspec has no driver for the URL, or it is not installed.
    """
    text = str(place)
    if "://" in text and not text.startswith("file://"):
        return UrlFiles(text)
    return FolderFiles(Path(text.removeprefix("file://")).resolve())
