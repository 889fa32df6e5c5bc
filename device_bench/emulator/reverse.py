"""The reverse-forward service of a device: a port of its loopback that leads to one of the host's.

Protocol: packages/modules/adb/docs/dev/services.md in AOSP (``reverse:…``). A connection to the port becomes a stream
that the device opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import re

from device_bench.emulator.wire import ClosedError, Stream

_FORWARD = re.compile(r"forward:(?:norebind:)?tcp:(\d{1,5});tcp:(\d{1,5})")
_KILL = re.compile(r"killforward:tcp:(\d{1,5})")
_CHUNK = 64 * 1024


class Reverse:
    """The ports of one device that lead to its host."""

    def __init__(self) -> None:
        self._ports: dict[int, asyncio.Server] = {}

    async def run(self, stream: Stream, argument: str) -> None:
        """Carry out what comes after ``reverse:``; the answer says whether it could be done."""
        forward, kill = _FORWARD.fullmatch(argument), _KILL.fullmatch(argument)
        if forward:
            await self._forward(stream, int(forward[1]), int(forward[2]))
        elif kill and int(kill[1]) in self._ports:
            self._ports.pop(int(kill[1])).close()
            await stream.write(b"OKAY")
        else:
            await _fail(stream, f"cannot do '{argument}'")

    def stop(self) -> None:
        """Close every port."""
        for server in self._ports.values():
            server.close()
        self._ports.clear()

    async def _forward(self, stream: Stream, wanted: int, host_port: int) -> None:
        link = stream.link

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ClosedError, ConnectionError, OSError):
                await _pass_on(await link.open(f"tcp:{host_port}"), reader, writer)
            writer.close()

        try:
            server = await asyncio.start_server(accept, "127.0.0.1", wanted)
        except OSError as error:
            await _fail(stream, f"cannot listen on tcp:{wanted}: {error.strerror}")
            return
        port = int(server.sockets[0].getsockname()[1])
        self._ports[port] = server
        # A port that the device chose is named after its OKAY.
        chosen = f"{len(str(port)):04x}{port}".encode() if wanted == 0 else b""
        await stream.write(b"OKAY" + chosen)


async def _fail(stream: Stream, why: str) -> None:
    await stream.write(b"FAIL" + f"{len(why):04x}{why}".encode())


async def _pass_on(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes both ways until either side ends."""

    async def outward() -> None:
        while data := await reader.read(_CHUNK):
            await stream.write(data)

    async def inward() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()

    tasks = [asyncio.create_task(outward()), asyncio.create_task(inward())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stream.close()
