"""A strict reader of the zip files that ``torch.save`` and ``torch.export.save`` write.

Two zip readers can see two different archives in one crafted file, so anything that a plain writer doesn't
produce is refused: gaps, overlaps, a comment, local headers that disagree with the directory. Standard library only.
"""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from build.errors import UntrustedInputError

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_END_RECORD_BYTES = 22
#: a zip data descriptor is at most signature, crc32 and two 64-bit sizes.
_DESCRIPTOR_BYTES = 24
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_SUSPECT_BYTES = 1 << 20
_CHUNK = 1 << 20
_MAX_NAME = 256
_NAME = re.compile(r"[A-Za-z0-9_.\-+ ()@=,/]+")

NEWER = "Export the program again with torch 2.13, or update this tool."
DAMAGED = "Copy or export the file again."
EXPORT = "Export the module and save that: torch.export.save(torch.export.export(module, example), 'FILE.pt2')."


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an archive may cost to read.

    Attributes:
        total_bytes: sum of the uncompressed sizes.
        text_bytes: size of one JSON file.
        ratio: uncompressed / stored size of an entry larger than 1 MiB (torch stores without compression).
        entries: number of files.
    """

    total_bytes: int = 64 << 30
    text_bytes: int = 256 << 20
    ratio: int = 100
    entries: int = 100_000


DEFAULT_LIMITS = Limits()


class Container:
    """The entries of one archive by name, without the archive's own prefix.

    Args:
        stream: seekable, stays open while the container is used.
        label: how messages name the archive.

    Raises:
        UntrustedInputError: the archive is damaged or crafted.
    """

    def __init__(self, stream: IO[bytes], label: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self.label = label
        self._stream = stream
        try:
            self._zip = zipfile.ZipFile(stream)
        except (zipfile.BadZipFile, EOFError, ValueError, OSError, NotImplementedError, struct.error) as error:
            raise self._no_archive(error) from None
        entries = self._zip.infolist()
        self._check_ends(entries)
        if len(entries) > limits.entries:
            raise self._refuse(f"has {len(entries)} entries, more than {limits.entries}")
        total = sum(e.file_size for e in entries)
        if total > limits.total_bytes:
            raise self._refuse(f"unpacks to {total} bytes, more than the limit of {limits.total_bytes}")
        for entry in entries:
            self._check_entry(entry, limits)
        self._check_places(entries)
        self._entries = self._without_prefix(entries)

    def names(self) -> list[str]:
        """Names without the prefix, in file order."""
        return list(self._entries)

    def size(self, name: str) -> int:
        """Uncompressed bytes of an entry."""
        return self._entries[name].file_size

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str, limit: int | None = None) -> bytes:
        """All bytes of an entry, CRC checked.

        Raises:
            UntrustedInputError: missing, larger than ``limit``, or damaged.
        """
        if name not in self._entries:
            raise self._refuse(f"has no entry '{name}'")
        if limit is not None and self.size(name) > limit:
            raise self._refuse(f"entry '{name}' has {self.size(name)} bytes, more than the limit of {limit}")
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of an entry in pieces, CRC checked at the end."""
        entry = self._entries[name]
        got = 0
        try:
            with self._zip.open(entry) as source:
                while piece := source.read(_CHUNK):
                    got += len(piece)
                    if got > entry.file_size:
                        raise self._refuse(f"entry '{name}' is longer than its directory says")
                    yield piece
        except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, OSError, ValueError) as e:
            raise self._refuse(f"entry '{name}' is damaged: {_one_line(e)}") from None
        if got != entry.file_size:
            raise self._refuse(f"entry '{name}' is cut short: {got} of {entry.file_size} bytes")

    def verify(self) -> None:
        """Read everything once: torch itself does not check CRCs.

        Raises:
            UntrustedInputError: an entry is damaged.
        """
        for name in self._entries:
            for _ in self.chunks(name):
                pass

    def _refuse(self, what: str) -> UntrustedInputError:
        return UntrustedInputError(f"{self.label}: {what}", remedy=DAMAGED)

    def _no_archive(self, error: Exception) -> UntrustedInputError:
        self._stream.seek(0)
        begin = self._stream.read(4)
        if begin == b"PK\x03\x04":
            return self._refuse(f"is cut short or damaged: {_one_line(error)}")
        what = "is empty" if not begin else "is a pickle" if begin[:1] == b"\x80" else "is not a .pt2 (zip) archive"
        return UntrustedInputError(f"{self.label} {what}: it holds no exported program", remedy=EXPORT)

    def _check_ends(self, entries: list[zipfile.ZipInfo]) -> None:
        size = self._stream.seek(0, 2)
        self._stream.seek(max(size - _END_RECORD_BYTES, 0))
        tail = self._stream.read(_END_RECORD_BYTES)
        if tail[:4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
            # A .pt2 holds archives itself: of one that was cut, the reader finds the directory of the last inner one.
            if min((e.header_offset for e in entries), default=1) > 0:
                raise self._refuse("is cut short or damaged: its end is missing")
            raise self._refuse("has bytes after the end of the archive")
        self._stream.seek(0)
        if self._stream.read(4) != b"PK\x03\x04":
            raise self._refuse("does not begin with an archive entry")

    def _check_entry(self, entry: zipfile.ZipInfo, limits: Limits) -> None:
        name = entry.filename
        raw = getattr(entry, "orig_filename", name)
        parts = name.split("/")
        if len(raw) > _MAX_NAME:
            raise self._refuse(f"an entry's name has {len(raw)} characters: {raw[:60]!r}...")
        if raw != name or not _NAME.fullmatch(name) or name.startswith("/") or re.match(r"[A-Za-z]:", name):
            raise self._refuse(f"entry {raw!r} has an unsafe name (absolute, or with unusual characters)")
        if any(p in ("", ".", "..") for p in parts):
            raise self._refuse(f"entry {name!r} has an unsafe path")
        mode = entry.external_attr >> 16
        if entry.is_dir() or (stat.S_IFMT(mode) not in (0, stat.S_IFREG)):
            raise self._refuse(f"entry '{name}' is a link or a folder, not a file")
        if entry.flag_bits & _ENCRYPTED:
            raise self._refuse(f"entry '{name}' is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._refuse(f"entry '{name}' uses compression method {entry.compress_type}")
        if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
            raise self._refuse(f"entry '{name}' declares two sizes: {entry.compress_size} and {entry.file_size} bytes")
        if entry.file_size > _SUSPECT_BYTES and entry.file_size > limits.ratio * max(entry.compress_size, 1):
            raise self._refuse(f"entry '{name}' unpacks {entry.compress_size} bytes to {entry.file_size} (a zip bomb?)")

    def _check_places(self, entries: list[zipfile.ZipInfo]) -> None:
        """Entries lie one behind the other from byte 0 to the directory, and local headers agree with it."""
        end = 0
        for entry in sorted(entries, key=lambda e: e.header_offset):
            gap = entry.header_offset - end
            if gap < 0 or gap > _DESCRIPTOR_BYTES:
                raise self._refuse(f"entry '{entry.filename}' overlaps another, or follows {gap} hidden bytes")
            self._stream.seek(entry.header_offset)
            head = self._stream.read(_LOCAL_HEADER.size)
            if len(head) != _LOCAL_HEADER.size:
                raise self._refuse(f"entry '{entry.filename}' lies outside the file")
            magic, _, flags, method, _, _, crc, packed, plain, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head)
            name = self._stream.read(name_bytes)
            agrees = (
                magic == b"PK\x03\x04"
                and name == entry.filename.encode()
                and flags & ~0x808 == entry.flag_bits & ~0x808
                and method == entry.compress_type
                and packed in (0, entry.compress_size, 0xFFFFFFFF)
                and plain in (0, entry.file_size, 0xFFFFFFFF)
                and crc in (0, entry.CRC)
            )
            if not agrees:
                raise self._refuse(f"entry '{entry.filename}': its own header disagrees with the directory")
            end = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes + entry.compress_size
        gap = self._zip.start_dir - end
        if gap < 0 or gap > _DESCRIPTOR_BYTES:
            raise self._refuse("the archive's directory overlaps an entry, or follows hidden bytes")

    def _without_prefix(self, entries: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
        found: dict[str, zipfile.ZipInfo] = {}
        prefixes = {e.filename.partition("/")[0] for e in entries}
        if len(prefixes) != 1:
            raise self._refuse(f"has {len(prefixes)} top folders; torch writes one")
        for entry in entries:
            name = entry.filename.partition("/")[2]
            if not name:
                raise self._refuse(f"entry '{entry.filename}' lies outside the archive's folder")
            if name in found:
                raise self._refuse(f"has two entries named '{name}'")
            found[name] = entry
        return found


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
