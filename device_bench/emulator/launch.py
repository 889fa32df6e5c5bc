"""Starting emulated devices for the length of one run, or of a test."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from build import shell
from build.cache import ROOT
from build.errors import DeviceError
from device_bench.devices import adb_client

#: 5555 to 5585 are scanned by the adb server itself: a device there shows up twice.
FIRST_PORT = 6001
_LAST_PORT = 6900
_START_SECONDS = 60.0
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Started:
    """A running emulator: per device its serial and the folder that its ``fault.json`` goes to."""

    serials: tuple[str, ...]
    folders: tuple[Path, ...]


@contextlib.contextmanager
def emulated_devices(home: Path, count: int, *, faults: Sequence[str] = ()) -> Iterator[Started]:
    """Start ``count`` emulated devices, connected to the adb server; they end with the block.

    Args:
        home: where the devices' files are kept, so that a resumed run finds them.

    Raises:
        DeviceError: they did not start.
    """
    home.mkdir(parents=True, exist_ok=True)
    adb_client.start_server()
    process, started = _launch(home, count, faults)
    try:
        yield started
    finally:
        shell.stop(process)
        for serial in started.serials:
            with contextlib.suppress(DeviceError):
                adb_client.disconnect(serial)


def _launch(home: Path, count: int, faults: Sequence[str]) -> tuple[subprocess.Popen[bytes], Started]:
    command = [sys.executable, "-m", "device_bench.emulator", "--folder", home, "--devices", count, "--follow-stdin"]
    command += [word for fault in faults for word in ("--fault", fault)]
    log = home / "emulator.log"
    for attempt in range(1, _ATTEMPTS + 1):
        with log.open("wb") as stream:
            words = [str(c) for c in (*command, "--port", free_ports(count))]
            process = shell.start(words, stdout=stream, env={"PYTHONPATH": str(ROOT)})
        try:
            return process, _started(process, log)
        except DeviceError as error:
            shell.stop(process)
            # Another emulator may have taken a port between our look and our start.
            if "in use" not in error.message or attempt == _ATTEMPTS:
                raise
        except BaseException:
            shell.stop(process)
            raise
    raise AssertionError("the last attempt returns or raises")


def _started(process: subprocess.Popen[bytes], log: Path) -> Started:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        lines = log.read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith('[{"serial"'):
                rows = json.loads(line)
                return Started(serials=tuple(r["serial"] for r in rows), folders=tuple(Path(r["folder"]) for r in rows))
        if process.poll() is not None:
            reason = next((line for line in lines if line.startswith("error: ")), "error: it ended at once")
            raise DeviceError(f"the emulated devices did not start: {reason.removeprefix('error: ')}")
        time.sleep(0.05)
    raise DeviceError(f"the emulated devices did not start in {_START_SECONDS:g} s")


def free_ports(count: int) -> int:
    """The first of ``count`` free ports in a row.

    Raises:
        DeviceError: there are none.
    """
    run = 0
    for port in range(FIRST_PORT, _LAST_PORT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                run += 1
            except OSError:
                run = 0
        if run == count:
            return port - count + 1
    raise DeviceError(f"no {count} free ports between {FIRST_PORT} and {_LAST_PORT}")
