"""One emulated device: shells, file sync and faults, behind a TCP port that the adb server connects to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from build.errors import DeviceError
from device_bench.emulator.faults import Fault, Faults
from device_bench.emulator.reverse import Reverse
from device_bench.emulator.root import CPU, make_root
from device_bench.emulator.sync import Sync, full_disk
from device_bench.emulator.wire import ClosedError, Endpoint, Link, Stream

_FEATURES = "shell_v2,cmd,stat_v2,ls_v2,fixed_push_mkdir,fixed_push_symlink_timestamp"
_CHUNK = 64 * 1024
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)
_REBOOT_SECONDS = 3.0
#: bytes into a file at which the connection breaks, for ``drop-push``.
_PUSH_BREAK = 20_000
#: only the harness's run is disturbed, not the lab's looking around.
_HARNESS = "exec "
_REPLACED = {
    "crash": "kill -SEGV $$",
    "hang": "exec sleep 1000000",
    "garbage": "exec head -c 100000000 /dev/urandom",
}
_ENVIRONMENT = {
    "PATH": "/system/bin:/bin:/usr/bin",
    "HOME": "/",
    "TMPDIR": "/data/local/tmp",
    "ANDROID_DATA": "/data",
    "QEMU_CPU": CPU,
}


class EmulatedDevice:
    """See the module.

    Args:
        folder: the device's own folder: ``root`` below it is its file system, ``fault.json`` its fault.
        port: on loopback; the serial is ``127.0.0.1:PORT``.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.root = folder / "root"
        self.faults = Faults(folder)
        self.links: set[Link] = set()
        self.running: set[int] = set()
        self._reverse = Reverse()
        self._server: asyncio.Server | None = None
        self._pushed = 0
        self._background: set[asyncio.Task[None]] = set()
        self.properties = {
            "ro.product.name": "edgeport_emulated",
            "ro.product.model": "Emulated arm64",
            "ro.product.device": "edgeport_emulated",
            "ro.product.manufacturer": "Edgeport",
            "ro.product.cpu.abi": "arm64-v8a",
            "ro.build.version.sdk": "34",
            "ro.build.version.release": "14",
            "ro.soc.model": "qemu-aarch64",
            "ro.serialno": f"EMULATED{port}",
            "ro.edgeport.emulated": "1",
        }

    @property
    def serial(self) -> str:
        """As adb lists it."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Lay out the root and listen."""
        make_root(self.root, self.properties)
        await self._listen()

    def stop(self) -> None:
        """End what runs on the device, and its connections."""
        self._reverse.stop()
        for link in list(self.links):
            link.drop()
        for group in list(self.running):
            _kill(group, signal.SIGKILL)

    async def _listen(self) -> None:
        try:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 20)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise DeviceError(f"port {self.port} is in use", remedy="Choose another with --port.") from error

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoint = Endpoint(
            banner=self._banner,
            authorized=lambda: self.faults.present("unauthorized") is None,
            serve=self._service,
        )
        link = Link(endpoint, reader, writer)
        self.links.add(link)
        try:
            await link.serve()
        finally:
            self.links.discard(link)

    def _banner(self) -> bytes:
        names = ("ro.product.name", "ro.product.model", "ro.product.device")
        properties = "".join(f"{name}={self.properties[name]};" for name in names)
        return f"device::{properties}features={_FEATURES}".encode()

    def drop(self) -> None:
        """Break every connection."""
        for link in list(self.links):
            link.drop()

    async def _vanish(self, after: float, away: float | None) -> None:
        """Break the connections after some seconds, and refuse new ones for ``away`` seconds.

        ``away`` None: until the fault is taken away.
        """
        await asyncio.sleep(after)
        if away != 0 and self._server is not None:
            self._server.close()
        self.drop()
        for group in list(self.running):
            _kill(group, signal.SIGHUP if away == 0 else signal.SIGKILL)
        if away is None:
            while self.faults.present("gone") is not None:
                await asyncio.sleep(0.2)
        elif away:
            await asyncio.sleep(away)
        if away != 0:
            await self._listen()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def place(self, path: str) -> Path:
        """A device path on the host, never outside the root."""
        return self.root / os.path.normpath("/" + path).lstrip("/")

    async def _service(self, stream: Stream, name: str) -> Coroutine[Any, Any, None]:
        kind, _, argument = name.partition(":")
        words = kind.split(",")
        if words[0] == "sync":
            self._pushed = 0
            return Sync(stream, self.place, self._before_write, self._mangle).run()
        if words[0] in ("shell", "exec"):
            return self._shell(stream, argument, framed="v2" in words)
        if words[0] == "reverse":
            return self._reverse.run(stream, argument)
        if words[0] == "reboot":
            return self._vanish(0.1, _REBOOT_SECONDS)
        raise OSError(f"no service {name}")

    def _before_write(self, count: int) -> None:
        if self.faults.present("full-disk") is not None:
            raise full_disk()
        self._pushed += count
        if self._pushed > _PUSH_BREAK and self.faults.take("drop-push") is not None:
            self.drop()
            raise ConnectionResetError

    def _mangle(self, data: bytes) -> bytes:
        if len(data) > 1000 and self.faults.take("corrupt-push") is not None:
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    def _disturb(self, script: str) -> str:
        """The script that runs in place of the wanted one, and what else happens meanwhile."""
        if _HARNESS not in script or "harness-" not in script:
            return script
        fault = self.faults.take(*_REPLACED, "drop-run", "reboot", "gone", "cut-output", "bad-result")
        return script if fault is None else self._fault_script(fault, script)

    def _fault_script(self, fault: Fault, script: str) -> str:
        if fault.kind in ("drop-run", "reboot", "gone"):
            away = {"drop-run": 0.0, "reboot": _REBOOT_SECONDS, "gone": None}[fault.kind]
            self._in_background(self._vanish(fault.after, away))
            return script
        if fault.kind == "cut-output":
            return f"( {script} ) | head -c 30"
        if fault.kind == "bad-result":
            # The job file is the last word of the command; its result lies beside it.
            job = script.split()[-1].strip("'\"")
            result = f"{job.rsplit('/', 1)[0]}/result.json"
            return f"{script.replace('&& exec ', '&& ', 1)}; head -c 1000 /dev/urandom > {result}"
        return _REPLACED[fault.kind]

    async def _shell(self, stream: Stream, command: str, *, framed: bool) -> None:
        process = await asyncio.create_subprocess_exec(
            shutil.which("chroot") or "/usr/sbin/chroot",
            self.root,
            "/system/bin/sh",
            *(["-c", self._disturb(command)] if command else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if framed else asyncio.subprocess.STDOUT,
            env=_ENVIRONMENT,
            start_new_session=True,
        )
        self.running.add(process.pid)
        feeding = asyncio.create_task(_feed(stream, process, framed=framed))
        sources = ((process.stdout, _STDOUT), (process.stderr, _STDERR))
        try:
            await asyncio.gather(*(_pump(stream, s, ident, framed=framed) for s, ident in sources if s is not None))
            code = await process.wait()
            if framed:
                await stream.write(struct.pack("<BIB", _EXIT, 1, code if code >= 0 else 128 - code))
        finally:
            feeding.cancel()
            _kill(process.pid, signal.SIGKILL)
            await process.wait()
            self.running.discard(process.pid)


async def _pump(stream: Stream, source: asyncio.StreamReader, ident: int, *, framed: bool) -> None:
    while data := await source.read(_CHUNK):
        await stream.write(struct.pack("<BI", ident, len(data)) + data if framed else data)


async def _feed(stream: Stream, process: asyncio.subprocess.Process, *, framed: bool) -> None:
    """Pass the host's input on. When the host is gone, end the program, as adbd does."""
    stdin = process.stdin
    if stdin is None:
        return
    try:
        while True:
            if framed:
                ident, length = struct.unpack("<BI", await stream.exactly(5))
                data = await stream.exactly(length)
                if ident == _CLOSE_STDIN:
                    stdin.close()
                elif ident == _STDIN and data:
                    stdin.write(data)
            else:
                data = await stream.read()
                if not data:
                    raise ClosedError
                stdin.write(data)
    except (ClosedError, ConnectionError):
        _kill(process.pid, signal.SIGHUP)


def _kill(group: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)
