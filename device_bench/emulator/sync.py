"""The file-sync service of a device: stat, list, send, receive. Protocol: packages/modules/adb/SYNC.TXT in AOSP."""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

from device_bench.emulator.wire import Stream

_CHUNK = 64 * 1024
_NO_SPACE = 28


class Sync:
    """One ``sync:`` stream.

    Args:
        place: device path -> path in the device's private root.
        before_write: called with a count of bytes before they are written; OSError refuses them.
        mangle: what becomes of received bytes.
    """

    def __init__(
        self,
        stream: Stream,
        place: Callable[[str], Path],
        before_write: Callable[[int], None],
        mangle: Callable[[bytes], bytes],
    ) -> None:
        self._stream, self._place, self._before_write, self._mangle = stream, place, before_write, mangle

    async def run(self) -> None:
        """Answer requests until QUIT."""
        answers: dict[bytes, Callable[[str, bytes], Awaitable[None]]] = {
            b"STAT": self._stat,
            b"STA2": self._stat2,
            b"LST2": self._stat2,
            b"LIST": self._list,
            b"LIS2": self._list,
            b"SEND": self._send,
            b"RECV": self._receive,
        }
        while True:
            ident, length = struct.unpack("<4sI", await self._stream.exactly(8))
            if ident == b"QUIT":
                return
            path = (await self._stream.exactly(length)).decode(errors="surrogateescape")
            if ident not in answers:
                await self._fail(f"unknown request {ident!r}")
                return
            try:
                await answers[ident](path, ident)
            except OSError as error:
                await self._fail(error.strerror or str(error))

    async def _fail(self, message: str) -> None:
        raw = message.encode()
        await self._stream.write(struct.pack("<4sI", b"FAIL", len(raw)) + raw)

    async def _stat(self, path: str, _: bytes) -> None:
        try:
            info = self._place(path).lstat()
            fields = info.st_mode, info.st_size & 0xFFFFFFFF, int(info.st_mtime)
        except OSError:
            fields = 0, 0, 0
        await self._stream.write(struct.pack("<4s3I", b"STAT", *fields))

    def _stat2_bytes(self, path: Path, *, follow: bool) -> bytes:
        try:
            i = os.stat(path, follow_symlinks=follow)
        except OSError as error:
            return struct.pack("<I", error.errno or 0) + bytes(64)
        times = int(i.st_atime), int(i.st_mtime), int(i.st_ctime)
        return struct.pack("<IQQIIIIQqqq", 0, i.st_dev, i.st_ino, i.st_mode, i.st_nlink, 2000, 2000, i.st_size, *times)

    async def _stat2(self, path: str, ident: bytes) -> None:
        await self._stream.write(ident + self._stat2_bytes(self._place(path), follow=ident == b"STA2"))

    async def _list(self, path: str, ident: bytes) -> None:
        folder = self._place(path)
        found = b""
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            if ident == b"LIS2":
                found += b"DNT2" + self._stat2_bytes(entry, follow=False)
            else:
                i = entry.lstat()
                found += struct.pack("<4s3I", b"DENT", i.st_mode, i.st_size & 0xFFFFFFFF, int(i.st_mtime))
            found += struct.pack("<I", len(os.fsencode(entry.name))) + os.fsencode(entry.name)
        await self._stream.write(found + b"DONE" + bytes(72 if ident == b"LIS2" else 16))

    async def _send(self, request: str, _: bytes) -> None:
        path, _comma, mode = request.rpartition(",")
        target = self._place(path)
        error: str | None = None
        file: IO[bytes] | None = None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            file = target.open("wb")
        except OSError as raised:
            error = raised.strerror
        try:
            while True:
                ident, value = struct.unpack("<4sI", await self._stream.exactly(8))
                if ident == b"DONE":
                    break
                data = await self._stream.exactly(value)
                if error is None and file is not None:
                    try:
                        self._before_write(len(data))
                        file.write(self._mangle(data))
                    except ConnectionError:
                        raise
                    except OSError as raised:
                        error = raised.strerror
        finally:
            if file is not None:
                file.close()  # a broken connection leaves what had arrived, as on a phone
        if error is not None:
            target.unlink(missing_ok=True)
            await self._fail(error)
            return
        os.chmod(target, int(mode) & 0o777)
        os.utime(target, (value, value))
        await self._stream.write(struct.pack("<4sI", b"OKAY", 0))

    async def _receive(self, path: str, _: bytes) -> None:
        with self._place(path).open("rb") as file:
            while data := file.read(_CHUNK):
                await self._stream.write(struct.pack("<4sI", b"DATA", len(data)) + data)
        await self._stream.write(struct.pack("<4sI", b"DONE", 0))


def full_disk() -> OSError:
    """What a device answers when its disk is full."""
    return OSError(_NO_SPACE, "No space left on device")
