"""Where releases lie: a folder, or whatever fsspec reaches (``s3://bucket/path``). Each object appears whole or not."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from build import cache
from build.errors import MissingToolError, StorageError

_PART = ".part-"


class Store(Protocol):
    """Objects by path, ``/`` between its parts."""

    def read(self, path: str) -> bytes | None:
        """An object's bytes; None where there is none."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Put an object in one step, in place of the one that is there."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Put an object in one step unless there is one; whether it was put."""
        ...

    def upload(self, path: str, file: Path) -> None:
        """Put a file in one step."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names right below a folder, sorted."""
        ...

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Keep others out, where the store can."""
        ...


def open_store(place: str) -> Store:
    """The store of a folder's path or a URL.

    Raises:
        MissingToolError: fsspec has no driver for the URL, or it is not installed.
    """
    if "://" in place and not place.startswith("file://"):
        return UrlStore(place)
    return FolderStore(Path(place.removeprefix("file://")).resolve())


class FolderStore:
    """A plain folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        """See :class:`Store`."""
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot read '{path}': {error.strerror or error}") from error

    def write(self, path: str, data: bytes) -> None:
        """See :class:`Store`."""
        with self._part(path) as part:
            part.write_bytes(data)
            self._put(part, path)

    def create(self, path: str, data: bytes) -> bool:
        """See :class:`Store`."""
        with self._part(path) as part:
            part.write_bytes(data)
            _sync(part)
            try:
                os.link(part, self._root / path)  # the one way to a whole file that fails when there is one
            except FileExistsError:
                return False
            _sync((self._root / path).parent)
            return True

    def upload(self, path: str, file: Path) -> None:
        """See :class:`Store`."""
        with self._part(path) as part:
            shutil.copyfile(file, part)
            self._put(part, path)

    def names(self, folder: str) -> list[str]:
        """See :class:`Store`."""
        place = self._root / folder
        return sorted(p.name for p in place.iterdir() if not p.name.startswith(".")) if place.is_dir() else []

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """See :class:`Store`. What a killed process left half-written is removed."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write '{self._root}': {error.strerror or error}") from error
        with cache.lock(self._root, name):
            for part in (self._root / name).rglob(f"{_PART}*"):
                part.unlink(missing_ok=True)
            yield

    @contextlib.contextmanager
    def _part(self, path: str) -> Iterator[Path]:
        target = self._root / path
        part = target.with_name(f"{_PART}{uuid.uuid4().hex}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            yield part
        except OSError as error:
            raise StorageError(f"cannot write '{path}': {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):  # not even the folder may be one
                part.unlink(missing_ok=True)

    def _put(self, part: Path, path: str) -> None:
        _sync(part)
        part.replace(self._root / path)
        _sync((self._root / path).parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class UrlStore:
    """An object store. It can't lock: promote to one channel from one place at a time."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise MissingToolError(
                f"cannot open '{url}': {error}", remedy="Install fsspec's driver for it (s3fs for s3://)."
            ) from error

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def read(self, path: str) -> bytes | None:
        """See :class:`Store`."""
        try:
            self._fs.invalidate_cache()
            return bytes(self._fs.cat_file(self._path(path)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read '{path}': {error}") from error

    def write(self, path: str, data: bytes) -> None:
        """See :class:`Store`."""
        self._do(path, lambda target: self._fs.pipe_file(target, data))

    def create(self, path: str, data: bytes) -> bool:
        """See :class:`Store`."""
        try:
            self._do(path, lambda target: self._fs.pipe_file(target, data, mode="create"))
        except FileExistsError:
            return False
        return True

    def upload(self, path: str, file: Path) -> None:
        """See :class:`Store`."""
        self._do(path, lambda target: self._fs.put_file(str(file), target))

    def names(self, folder: str) -> list[str]:
        """See :class:`Store`."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted({str(p).rstrip("/").rsplit("/", 1)[-1] for p in found})

    def lock(self, name: str) -> AbstractContextManager[None]:
        """See :class:`Store`."""
        return contextlib.nullcontext()

    def _do(self, path: str, put: Any) -> None:
        target = self._path(path)
        try:
            self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            put(target)
        except FileExistsError:
            raise
        except OSError as error:
            raise StorageError(f"cannot write '{path}': {error}") from error
