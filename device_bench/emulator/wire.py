"""The device's side of the adb transport protocol, over TCP. Protocol: packages/modules/adb/protocol.txt in AOSP.

One message: six little-endian words (command, two arguments, length, checksum, command inverted) and the data.
Version 0x01000001 needs no checksums. One WRTE may be in flight on a stream until its OKAY comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any


def _word(text: bytes) -> int:
    return int.from_bytes(text, "little")


CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = map(_word, (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE"))
VERSION = 0x01000001
MAX_PAYLOAD = 256 * 1024
_AUTH_TOKEN = 1


class ClosedError(Exception):
    """The other side closed the stream, or the connection broke."""


class Stream:
    """One stream: a pair of ids on a link."""

    def __init__(self, link: Link, local: int, remote: int) -> None:
        self.link, self.local, self.remote = link, local, remote
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.rest = bytearray()
        self.ready = asyncio.Event()
        self.closed = False

    async def write(self, data: bytes) -> None:
        """Send, a message at a time, each acknowledged."""
        for start in range(0, len(data), self.link.max_data):
            self.ready.clear()
            if self.closed:
                raise ClosedError
            await self.link.send(WRTE, self.local, self.remote, data[start : start + self.link.max_data])
            await self.ready.wait()
            if self.closed:
                raise ClosedError

    async def read(self) -> bytes:
        """What the host sent next; empty at the end."""
        data = await self.inbox.get()
        if data is None:
            self.closed = True
            return b""
        await self.link.send(OKAY, self.local, self.remote)
        return data

    async def exactly(self, count: int) -> bytes:
        """Exactly ``count`` bytes."""
        while len(self.rest) < count:
            data = await self.read()
            if not data:
                raise ClosedError
            self.rest += data
        found, self.rest = bytes(self.rest[:count]), self.rest[count:]
        return found

    async def close(self) -> None:
        """Tell the host that nothing more comes."""
        if self.link.streams.pop(self.local, None) is not None:
            self.shut()
            with contextlib.suppress(ConnectionError):
                await self.link.send(CLSE, self.local, self.remote)

    def shut(self) -> None:
        """Wake whoever waits: nothing more comes."""
        self.closed = True
        self.inbox.put_nowait(None)
        self.ready.set()


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """What a link needs of its device.

    Attributes:
        banner: what the device says of itself when connected to.
        authorized: whether the host's key counts as accepted.
        serve: carries out one service (``shell,v2,raw:…``, ``sync:``) on a stream; OSError refuses it.
    """

    banner: Callable[[], bytes]
    authorized: Callable[[], bool]
    serve: Callable[[Stream, str], Awaitable[Coroutine[Any, Any, None]]]


class Link:
    """One connection from an adb server."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.endpoint, self.reader, self.writer = endpoint, reader, writer
        self.streams: dict[int, Stream] = {}
        self.max_data = 4096
        self._next = 1
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, command: int, first: int = 0, second: int = 0, data: bytes = b"") -> None:
        """One message."""
        checksum = sum(data) if command == CNXN else 0
        header = struct.pack("<6I", command, first, second, len(data), checksum, command ^ 0xFFFFFFFF)
        async with self._lock:
            self.writer.write(header + data)
            await self.writer.drain()

    async def open(self, service: str) -> Stream:
        """A stream to a service of the host's.

        Raises:
            ClosedError: the host refuses, or the connection broke.
        """
        stream = self._new_stream(0)
        await self.send(OPEN, stream.local, 0, service.encode() + b"\0")
        await stream.ready.wait()
        if stream.closed:
            raise ClosedError
        return stream

    def _new_stream(self, remote: int) -> Stream:
        stream = Stream(self, self._next, remote)
        self.streams[self._next] = stream
        self._next += 1
        return stream

    async def serve(self) -> None:
        """Answer until the connection ends."""
        try:
            while True:
                command, first, second, length, _, magic = struct.unpack("<6I", await self.reader.readexactly(24))
                if magic != command ^ 0xFFFFFFFF or length > MAX_PAYLOAD:
                    break
                data = await self.reader.readexactly(length) if length else b""
                await self._answer(command, first, second, data)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.drop()

    async def _answer(self, command: int, first: int, second: int, data: bytes) -> None:
        stream = self.streams.get(second)
        if command in (CNXN, AUTH):
            await self._greet(command, second)
        elif command == OPEN:
            new = self._new_stream(first)
            task = asyncio.create_task(self._service(new, data.rstrip(b"\0").decode(errors="replace")))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif stream is not None and command == OKAY:
            stream.remote = first
            stream.ready.set()
        elif stream is not None and command == WRTE:
            stream.inbox.put_nowait(data)
        elif stream is not None and command == CLSE:
            del self.streams[second]
            stream.shut()
            await self.send(CLSE, stream.local, stream.remote)

    async def _greet(self, command: int, host_max: int) -> None:
        if not self.endpoint.authorized():
            await self.send(AUTH, _AUTH_TOKEN, 0, os.urandom(20))
            return
        if command == CNXN:
            self.max_data = min(host_max, MAX_PAYLOAD)
        await self.send(CNXN, VERSION, MAX_PAYLOAD, self.endpoint.banner())

    async def _service(self, stream: Stream, name: str) -> None:
        try:
            body = await self.endpoint.serve(stream, name)
        except OSError:
            self.streams.pop(stream.local, None)
            await self._last(0, stream.remote)
            return
        try:
            await self.send(OKAY, stream.local, stream.remote)
            await body
        except (ClosedError, ConnectionError, OSError):
            pass
        if self.streams.pop(stream.local, None) is not None:
            await self._last(stream.local, stream.remote)

    async def _last(self, local: int, remote: int) -> None:
        with contextlib.suppress(ConnectionError):
            await self.send(CLSE, local, remote)

    def drop(self) -> None:
        """End the connection at once, as a pulled cable does."""
        for stream in self.streams.values():
            stream.shut()
        self.streams.clear()
        if self.writer.transport is not None:
            self.writer.transport.abort()
