"""Keys, locks and atomic writes: what keeps ``out/`` whole whatever happens to a build. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from build.errors import StorageError

ROOT = Path(__file__).resolve().parent.parent
_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100


def sha256_file(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def key_of(**parts: Any) -> str:
    """sha256 of named parts (JSON values); the order in which they are given does not matter."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def code_hash(paths: Iterable[str]) -> str:
    """sha256 over source files, and over every ``.py`` and ``.toml`` below folders, relative to the checkout's root."""
    digest = hashlib.sha256()
    files: set[Path] = set()
    for name in paths:
        path = ROOT / name
        if path.is_dir():
            files.update(p for p in path.rglob("*") if p.suffix in (".py", ".toml") and "__pycache__" not in p.parts)
        else:
            files.add(path)
    for file in sorted(files):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def list_files(folder: Path) -> list[Path]:
    """Every regular file below ``folder``, sorted, as relative paths."""
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


@contextlib.contextmanager
def lock(out: Path, name: str) -> Iterator[None]:
    """Hold an exclusive lock (flock: the kernel frees it when the holder dies).

    Raises:
        StorageError: the disk is full or not writable.
    """
    path = out / ".locks" / (hashlib.sha256(name.encode()).hexdigest()[:20] + ".lock")
    while True:
        with _open_below(out, path) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if not _is(path, stream):
                continue  # another build tidied up while we waited: this file is nobody's lock any more
            try:
                yield
            finally:
                fcntl.flock(stream, fcntl.LOCK_UN)
            return


def _open_below(out: Path, path: Path) -> IO[str]:
    """Open a file to write in a folder that other builds remove when it is empty."""
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return path.open("w")
    except OSError as error:
        raise StorageError(f"cannot write below '{out}': {error.strerror or error}") from error


def _is(path: Path, stream: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A fresh folder on the same file system as ``out``; removed at the end unless it was moved into place.

    A folder left by a killed build is removed by the next build: nobody holds its lock any more.

    Raises:
        StorageError: the disk is full or not writable.
    """
    home = out / ".staging"
    folder = home / uuid.uuid4().hex
    guard = _open_below(out, folder.with_suffix(".lock"))
    fcntl.flock(guard, fcntl.LOCK_EX)
    try:
        try:
            folder.mkdir()
        except OSError as error:
            raise StorageError(f"cannot write below '{out}': {error.strerror or error}") from error
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        guard.close()
        with contextlib.suppress(OSError):
            folder.with_suffix(".lock").unlink(missing_ok=True)
            home.rmdir()


def sweep(out: Path) -> None:
    """Remove staging folders whose build is gone."""
    for guard in (out / ".staging").glob("*.lock"):
        try:
            with guard.open("w") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(guard.with_suffix(""), ignore_errors=True)
                guard.unlink(missing_ok=True)
        except OSError:
            continue  # its build is alive, or another sweep was faster
    with contextlib.suppress(OSError):
        (out / ".staging").rmdir()


_OWN = (".locks", ".staging", "logs")


def absent(out: Path) -> tuple[Path, ...]:
    """What a build that is about to start will have made itself, for :func:`clear_if_empty`."""
    return tuple(p for p in (*(out / name for name in _OWN), out) if not p.exists())


def clear_if_empty(out: Path, made: Iterable[Path]) -> None:
    """Remove what a build wrote for itself when it has nothing else to show for it (a refused input, say).

    Args:
        made: what :func:`absent` said before the build; whatever was there already is the user's, and stays.
    """
    with contextlib.suppress(OSError):
        if not {p.name for p in out.iterdir()} <= set(_OWN) or any((out / ".staging").glob("*")):
            return
        for path in made:
            if path == out:
                path.rmdir()
            else:
                shutil.rmtree(path, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders in one step. False where the kernel or the file system can't."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(b))


def put_folder(new: Path, place: Path) -> None:
    """Make ``new`` the content of ``place`` in one step: a reader sees the whole old folder or the whole new one.

    Where folders can't be swapped in one step, the old one is moved aside first; a kill between the two moves
    leaves no artifact, never a mixture.

    Raises:
        StorageError: the disk is full or not writable.
    """
    try:
        sync_tree(new)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            new.rename(place)
        elif not _exchange(new, place):
            aside = new.with_name(new.name + ".old")
            place.rename(aside)
            new.rename(place)
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"cannot write '{place}': {error.strerror or error}") from error


def sync_tree(folder: Path) -> None:
    """Flush every file below ``folder`` to disk, so that a name never points at bytes that were not written."""
    for path in [folder / p for p in list_files(folder)] + [folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file so that readers see the old one or the new one.

    Raises:
        StorageError: the disk is full or not writable.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # not even the folder may be one
            temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write '{path}': {error.strerror or error}") from error
