"""Starting emulated devices for the length of one run, on an adb server of their own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from build import shell
from build.errors import DeviceError
from device_bench.devices import adb_client

_START_SECONDS = 30.0


@contextlib.contextmanager
def emulated_devices(out: Path, count: int) -> Iterator[list[str]]:
    """Serials of ``count`` fresh emulated devices. Their files are kept below ``out``, so that a resumed run finds them.

    Raises:
        DeviceError: they did not start.
    """
    home = out / "bench" / "emulated"
    home.mkdir(parents=True, exist_ok=True)
    log = home / "emulator.log"
    adb_client.start_server()
    ports = [_port(6001 + i) for i in range(count)]
    command = [sys.executable, "-m", "device_bench.emulator", "--folder", home, "--devices", str(count)]
    with log.open("wb") as stream:
        process = shell.start([*command, "--port", str(ports[0])], stdout=stream)
    try:
        yield _serials(process, log)
    finally:
        shell.stop(process)
