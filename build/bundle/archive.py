"""The release archive: a zip that depends on its content only, and reading one that a stranger may have made.

Entries are stored, not compressed: compressed bytes depend on the version of zlib, and weights hardly shrink. So an
archive can't hold more than its own size, and a "bomb" is refused by that rule alone.
"""

from __future__ import annotations

import os
import shutil
import stat
import unicodedata
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from build.errors import StorageError, UntrustedInputError

#: zip's own first date; a real one would differ from build to build.
_DATE = (1980, 1, 1, 0, 0, 0)
_MAX_ENTRIES = 100_000
_MAX_NAME = 400
_LOCAL_HEADER_BYTES = 30
_LOCAL_HEADER = b"PK\x03\x04"
_END_BYTES = 22
_END = b"PK\x05\x06"
#: names that Windows keeps for devices, with or without an extension
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"com{i}" for i in range(10)), *(f"lpt{i}" for i in range(10))},
)


def write(files: Mapping[str, Path], place: Path, *, top: str, executables: Collection[str] = frozenset()) -> None:
    """Write an archive. The same names and bytes give the same archive, whoever writes it, where and when.

    Args:
        files: path inside the archive's folder -> file.
        place: the archive; it must not exist yet.
        top: the one folder that everything lies in.
        executables: the files that get the executable bit (a file system's own bits tell nothing sure).

    Raises:
        StorageError: the disk is full or not writable.
    """
    try:
        with place.open("xb") as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
            for name in sorted(files):
                _add(archive, f"{top}/{name}", files[name], 0o755 if name in executables else 0o644)
            archive.close()
            raw.flush()
            os.fsync(raw.fileno())
    except OSError as error:
        raise StorageError(f"cannot write '{place.name}': {error.strerror or error}") from error


def _add(archive: zipfile.ZipFile, name: str, path: Path, mode: int) -> None:
    info = zipfile.ZipInfo(name, date_time=_DATE)
    info.external_attr = (stat.S_IFREG | mode) << 16
    info.create_system = 3
    info.file_size = path.stat().st_size
    with path.open("rb") as source, archive.open(info, "w", force_zip64=info.file_size >= zipfile.ZIP64_LIMIT) as out:
        shutil.copyfileobj(source, out, 1 << 20)


def entries(path: Path) -> dict[str, zipfile.ZipInfo]:
    """Check an archive before anything is taken out of it.

    Returns:
        Path inside the one top folder -> entry.

    Raises:
        UntrustedInputError: it is damaged, or not as :func:`write` makes archives; the message says which entry.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if archive.comment:
                raise _refuse(path, "it has a comment")
            end = archive.start_dir
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise _refuse(path, f"it is not a whole zip archive: {error}") from error
    if not infos or len(infos) > _MAX_ENTRIES:
        raise _refuse(path, f"it has {len(infos)} entries")
    found: dict[str, zipfile.ZipInfo] = {}
    tops = set()
    for info in infos:
        top, name = _split(path, info)
        tops.add(top)
        if name in found:
            raise _refuse(path, f"'{info.filename}' is in it twice")
        found[name] = info
    if len(tops) > 1:
        raise _refuse(path, f"it has more than one top folder: {', '.join(sorted(tops)[:4])}")
    _check_clashes(path, found)
    _check_layout(path, infos, end)
    return found


def _refuse(path: Path, why: str) -> UntrustedInputError:
    return UntrustedInputError(f"{path.name}: {why}", remedy="Do not use it; get the bundle again from who made it.")


def _split(path: Path, info: zipfile.ZipInfo) -> tuple[str, str]:
    """Top folder and the path below it, if the entry is a plain stored file with a harmless name."""
    name, shown = info.orig_filename, info.orig_filename[:80]
    if name != info.filename or not name.isprintable() or "\\" in name or len(name) > _MAX_NAME:
        raise _refuse(path, f"the name {shown!r} holds characters that no name in a bundle has")
    parts = name.split("/")
    if name.startswith("/") or ":" in name or any(p in ("", ".", "..") for p in parts):
        raise _refuse(path, f"'{shown}' leads outside the folder, or is no plain path of a file")
    for part in parts:
        if part.split(".")[0].lower() in _DEVICES or part.endswith((" ", ".")):
            raise _refuse(path, f"'{shown}' is no name that every system can hold")
    if len(parts) < 2:
        raise _refuse(path, f"'{shown}' lies outside the top folder")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind != stat.S_IFREG or info.is_dir():
        what = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder"}.get(kind, "not a regular file")
        raise _refuse(path, f"'{shown}' is {what}")
    if info.flag_bits & 0x1:
        raise _refuse(path, f"'{shown}' is encrypted")
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise _refuse(path, f"'{shown}' is compressed ({info.file_size} bytes unpacked); bundles store their files")
    return parts[0], "/".join(parts[1:])


def _check_clashes(path: Path, found: Mapping[str, zipfile.ZipInfo]) -> None:
    """Names that are one on some file systems, and a file where another entry needs a folder."""
    folded: dict[str, str] = {}
    for name in found:
        key = unicodedata.normalize("NFC", name).casefold()
        if key in folded:
            raise _refuse(path, f"'{folded[key]}' and '{name}' are one name on some systems")
        folded[key] = name
    for key, name in folded.items():
        for parent in PurePosixPath(key).parents:
            if str(parent) in folded:
                raise _refuse(path, f"'{folded[str(parent)]}' is both a file and the folder of '{name}'")


def _check_layout(path: Path, infos: list[zipfile.ZipInfo], end: int) -> None:
    """Entries follow each other without gaps or overlaps from the first byte: nothing is hidden, nothing shared."""
    position = 0
    with path.open("rb") as stream:
        for info in sorted(infos, key=lambda i: i.header_offset):
            if info.header_offset != position:
                raise _refuse(path, f"'{info.filename[:80]}' does not start where the entry before it ends")
            stream.seek(position)
            header = stream.read(_LOCAL_HEADER_BYTES)
            if len(header) < _LOCAL_HEADER_BYTES or not header.startswith(_LOCAL_HEADER):
                raise _refuse(path, f"'{info.filename[:80]}' has no header of its own")
            name_bytes = int.from_bytes(header[26:28], "little")
            extra_bytes = int.from_bytes(header[28:30], "little")
            if stream.read(name_bytes) != info.filename.encode():
                raise _refuse(path, f"'{info.filename[:80]}' has another name in its own header")
            flags, method = header[6:8], header[8:10]
            if method != b"\0\0" or flags[0] & 0x9 or header[14:18] != info.CRC.to_bytes(4, "little"):
                raise _refuse(path, f"'{info.filename[:80]}' is described otherwise in its own header")
            position += _LOCAL_HEADER_BYTES + name_bytes + extra_bytes + info.file_size
        stream.seek(-_END_BYTES, os.SEEK_END)
        if stream.read(4) != _END:
            raise _refuse(path, "there are bytes after its end")
    if position != end:
        raise _refuse(path, "there are bytes between the last entry and the list of entries")


def extract(path: Path, folder: Path) -> list[str]:
    """Unpack a checked archive below an empty folder, its top folder left out.

    Returns:
        The paths of the files, sorted.

    Raises:
        UntrustedInputError: see :func:`entries`; or an entry's bytes do not match its checksum.
        StorageError: the disk is full or not writable.
    """
    found = entries(path)
    try:
        with zipfile.ZipFile(path) as archive:
            for name, info in found.items():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    with archive.open(info) as source:
                        _copy(source, target, executable=bool(info.external_attr >> 16 & stat.S_IXUSR))
                except (zipfile.BadZipFile, EOFError) as error:
                    raise _refuse(path, f"'{name}' is damaged: its bytes do not match its checksum") from error
    except OSError as error:
        raise StorageError(f"cannot unpack '{path.name}': {error.strerror or error}") from error
    return sorted(found)


def _copy(source: IO[bytes], target: Path, *, executable: bool) -> None:
    # O_EXCL and O_NOFOLLOW: whatever lies there already is never written to.
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if executable else 0o644)
    with os.fdopen(descriptor, "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def read_member(path: Path, name: str) -> bytes:
    """One small file of a checked archive.

    Raises:
        UntrustedInputError: see :func:`entries`; or there is no such file.
    """
    found = entries(path)
    if name not in found:
        raise _refuse(path, f"it holds no '{name}'")
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(found[name])
    except (zipfile.BadZipFile, EOFError) as error:
        raise _refuse(path, f"'{name}' is damaged: its bytes do not match its checksum") from error
