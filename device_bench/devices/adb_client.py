"""A thin client of the adb server: smart-socket protocol, shell v2, sync. Standard library only.

Commands are run through the server's socket and not through the ``adb`` program: version 29 of that ends with 0 and
output cut short when the connection drops during a run. Here a run without its exit packet is a lost device.

Protocol: packages/modules/adb/{protocol,SERVICES,SYNC}.TXT and shell_protocol.h in AOSP.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build import shell
from build.errors import DeviceError, DeviceLostError, RejectedResultError
from device_bench.devices.base import Completed

_CHUNK = 64 * 1024  # what one sync DATA packet may hold
_STDOUT, _STDERR, _EXIT = 1, 2, 3
#: what is kept of a command's output, in bytes per stream.
OUTPUT_LIMIT = 1 << 20
#: what a command may print before it is ended, in bytes.
_FLOOD = 64 << 20
_CONNECT_TIMEOUT = 10.0
#: seconds without a byte while a file is copied.
_STALL = 60.0


def server_port() -> int:
    """Where the server listens: ``ANDROID_ADB_SERVER_PORT``, as the adb program has it."""
    return int(os.environ.get("ANDROID_ADB_SERVER_PORT", "5037"))


class Connection:
    """One connection to the server."""

    def __init__(self, where: str, timeout: float) -> None:
        self.where = where
        try:
            self.socket = socket.create_connection(("127.0.0.1", server_port()), timeout=_CONNECT_TIMEOUT)
        except OSError as error:
            raise DeviceLostError(f"{where}: the adb server does not answer: {error}") from error
        self.socket.settimeout(timeout)

    def write(self, data: bytes) -> None:
        """Send all of it."""
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise DeviceLostError(f"{self.where}: the connection broke: {error}") from error

    def read(self, count: int) -> bytes:
        """Exactly ``count`` bytes."""
        parts = []
        while count:
            try:
                data = self.socket.recv(min(count, 1 << 20))
            except TimeoutError:
                raise
            except OSError as error:
                raise DeviceLostError(f"{self.where}: the connection broke: {error}") from error
            if not data:
                raise DeviceLostError(f"{self.where}: the connection broke")
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def request(self, service: str) -> None:
        """Ask the server for a service.

        Raises:
            DeviceError: the server says no.
        """
        raw = service.encode()
        self.write(b"%04x" % len(raw) + raw)
        if self.read(4) != b"OKAY":
            reason = self.block()
            kind = DeviceLostError if _is_gone(reason) else DeviceError
            raise kind(f"{self.where}: adb says: {reason}", remedy=_remedy(reason))

    def block(self) -> str:
        """A text with its length in front."""
        return self.read(int(self.read(4), 16)).decode(errors="replace")


def _is_gone(reason: str) -> bool:
    return any(word in reason for word in ("offline", "not found", "no devices", "closed", "still connecting"))


def _remedy(reason: str) -> str | None:
    if "authoriz" in reason:  # unauthorized, or still authorizing: nobody has accepted the key yet
        return "Unlock the device and accept this computer's key, then run again."
    if "permissions" in reason:
        return "Install Android's udev rules (package android-sdk-platform-tools-common), or run as root."
    return None


@contextmanager
def connected(where: str, *services: str, timeout: float) -> Iterator[Connection]:
    """A connection on which the services have been asked for, one after the other."""
    connection = Connection(where, timeout)
    try:
        for service in services:
            connection.request(service)
        yield connection
    finally:
        connection.socket.close()


def start_server() -> None:
    """Make the server run. The adb program owns USB, keys and connecting."""
    shell.run(["adb", "start-server"])


def devices() -> dict[str, str]:
    """Serial -> state (``device``, ``offline``, ``unauthorized``, …)."""
    with connected("adb", "host:devices", timeout=_CONNECT_TIMEOUT) as connection:
        lines = connection.block().splitlines()
    return dict(line.split("\t", 1) for line in lines if "\t" in line)


def connect(address: str) -> str:
    """Have the server connect to ``host:port``. Its answer: success and refusal look alike but for the text."""
    with connected("adb", f"host:connect:{address}", timeout=30) as connection:
        return connection.block()


def disconnect(address: str) -> None:
    """Have the server forget ``host:port``."""
    with connected("adb", f"host:disconnect:{address}", timeout=30):
        pass


def reverse(serial: str, port: int) -> int:
    """Let a port of the device's loopback lead to ``port`` of this machine's; returns the device's, which it chooses.

    Raises:
        DeviceError: the device refuses.
    """
    where = f"adb {serial}"
    service = f"reverse:forward:tcp:0;tcp:{port}"
    with connected(where, f"host:transport:{serial}", service, timeout=_CONNECT_TIMEOUT) as connection:
        _status(connection, where)
        return int(connection.block())


def reverse_remove(serial: str, port: int) -> None:
    """Take back what :func:`reverse` made; ``port``: the device's.

    Raises:
        DeviceError: there is no such port.
    """
    where = f"adb {serial}"
    service = f"reverse:killforward:tcp:{port}"
    with connected(where, f"host:transport:{serial}", service, timeout=_CONNECT_TIMEOUT) as connection:
        _status(connection, where)


def _status(connection: Connection, where: str) -> None:
    """The device's own answer, after the server's."""
    if connection.read(4) != b"OKAY":
        raise DeviceError(f"{where}: the device says: {connection.block()}")


def run_shell(serial: str, script: str, *, timeout: float) -> Completed:
    """Run a script in the device's shell.

    Raises:
        DeviceLostError: the connection ended before the exit code came.
        TimeoutError: no exit code after ``timeout`` seconds. The device ends what it ran when the connection goes.
    """
    where = f"adb {serial}"
    deadline = time.monotonic() + timeout
    streams = {_STDOUT: bytearray(), _STDERR: bytearray()}
    received, cut = 0, False
    with connected(where, f"host:transport:{serial}", f"shell,v2,raw:{script}", timeout=timeout) as connection:
        while True:
            connection.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            kind, length = struct.unpack("<BI", connection.read(5))
            data = connection.read(length)
            if kind == _EXIT:
                break
            received += length
            if received > _FLOOD:
                return Completed(code=1, stdout="", stderr="", cut=True)
            if kind in streams:
                streams[kind] += data
                if len(streams[kind]) > OUTPUT_LIMIT:
                    del streams[kind][:-OUTPUT_LIMIT]
                    cut = True
    out, err = (streams[k].decode(errors="replace") for k in (_STDOUT, _STDERR))
    return Completed(code=data[0] if data else 0, stdout=out, stderr=err, cut=cut)


def push(serial: str, local: Path, remote: str) -> None:
    """Write a file on the device.

    Raises:
        DeviceLostError: the connection broke; a part of the file may be there.
        DeviceError: the device could not write it.
    """
    where = f"adb {serial}"
    try:
        with connected(where, f"host:transport:{serial}", "sync:", timeout=_STALL) as connection:
            target = f"{remote},{0o100644}".encode()
            connection.write(b"SEND" + struct.pack("<I", len(target)) + target)
            with local.open("rb") as stream:
                while data := stream.read(_CHUNK):
                    connection.write(b"DATA" + struct.pack("<I", len(data)) + data)
            connection.write(b"DONE" + struct.pack("<I", int(local.stat().st_mtime)))
            answer, length = struct.unpack("<4sI", connection.read(8))
            if answer == b"FAIL":
                reason = connection.read(length).decode(errors="replace")
                raise DeviceError(f"{where}: cannot write {Path(remote).name}: {reason}", remedy=_full(reason))
            if answer != b"OKAY":
                raise DeviceLostError(f"{where}: an answer that is none while sending {local.name}")
    except TimeoutError as error:
        raise DeviceLostError(f"{where}: nothing moved for {_STALL:g} s while sending {local.name}") from error


def _full(reason: str) -> str | None:
    return "Free some space on the device." if "space" in reason.lower() else None


def pull(serial: str, remote: str, local: Path, *, max_bytes: int) -> None:
    """Read a file from the device.

    Raises:
        DeviceLostError: the connection broke.
        RejectedResultError: the file cannot be read, or has more than ``max_bytes``.
    """
    where = f"adb {serial}"
    got = 0
    try:
        with (
            connected(where, f"host:transport:{serial}", "sync:", timeout=_STALL) as connection,
            local.open("wb") as stream,
        ):
            name = remote.encode()
            connection.write(b"RECV" + struct.pack("<I", len(name)) + name)
            while True:
                answer, length = struct.unpack("<4sI", connection.read(8))
                if answer == b"DONE":
                    return
                if answer == b"FAIL":
                    reason = connection.read(length).decode(errors="replace")
                    raise RejectedResultError(f"{where}: cannot fetch {Path(remote).name}: {reason}")
                got += length
                if answer != b"DATA" or length > _CHUNK or got > max_bytes:
                    raise RejectedResultError(f"{where}: {Path(remote).name} is larger than it may be")
                stream.write(connection.read(length))
    except TimeoutError as error:
        raise DeviceLostError(f"{where}: nothing moved for {_STALL:g} s while fetching {Path(remote).name}") from error
