"""``python -m device_bench.emulator [--devices N] [--fault 1=KIND]``: what ``nox -s emulator`` runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from build import shell
from build.errors import DeviceError, EdgeportError, InputError
from build.log import fail, say
from device_bench.devices import adb_client
from device_bench.emulator import faults
from device_bench.emulator.device import EmulatedDevice
from device_bench.emulator.launch import FIRST_PORT, free_ports
from device_bench.emulator.root import BATTERY, MOUNTED, enter_namespace


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(prog="nox -s emulator --", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--devices", type=int, default=1, metavar="N", help="how many")
    p.add_argument("--port", type=int, default=FIRST_PORT, help="of the first; the others follow. 0: any free ones")
    p.add_argument("--fault", action="append", default=[], metavar="N=KIND[*TIMES]", help="have device N misbehave")
    p.add_argument("--folder", metavar="DIR", help="where the devices' files live; a temporary folder without it")
    p.add_argument("--no-connect", action="store_true", help="leave 'adb connect' to the caller")
    p.add_argument("--follow-stdin", action="store_true", help="end when stdin does")
    p.epilog = "Faults: " + "; ".join(f"{kind}: {text}" for kind, text in faults.KINDS.items())
    return p


async def serve(devices: Sequence[EmulatedDevice], *, connect: bool, follow_stdin: bool) -> None:
    """Run until told to stop. The first line on stdout is JSON: the serials and folders."""
    for device in devices:
        await device.start()
    stop = asyncio.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stop.set)
    watching = asyncio.create_task(_wait_for_end(stop)) if follow_stdin else None
    for device in devices:
        if connect:
            await asyncio.to_thread(_connect, device.serial)
    print(json.dumps([{"serial": d.serial, "folder": str(d.folder)} for d in devices]), flush=True)
    say(f"{len(devices)} emulated device(s): {', '.join(d.serial for d in devices)}; times measured there mean nothing")
    await stop.wait()
    if watching is not None:
        watching.cancel()
    for device in devices:
        device.stop()
        if connect:
            with contextlib.suppress(DeviceError):
                await asyncio.to_thread(adb_client.disconnect, device.serial)
    await asyncio.sleep(0.1)  # the links' own tasks see that they are broken, and end


async def _wait_for_end(stop: asyncio.Event) -> None:
    """Stop when stdin ends: whoever started us is gone, however that came."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    stop.set()


def _connect(serial: str) -> None:
    try:
        with contextlib.suppress(DeviceError):
            adb_client.disconnect(serial)  # what an emulator that was killed left behind: it would count as connected
        answer = adb_client.connect(serial)
        say(f"adb: {answer}")
    except DeviceError as error:
        say(f"adb: {error.message}")


def main(argv: list[str]) -> int:
    """Start the devices; ends with SIGTERM or Ctrl-C."""
    options = parser().parse_args(argv)
    scratch: Path | None = None
    try:
        if options.devices < 1:
            raise InputError(f"--devices {options.devices}: needs at least 1")
        wanted = [faults.parse(text) for text in options.fault]
        if any(not 1 <= number <= options.devices for number, _ in wanted):
            raise InputError("--fault names a device that is not started")
        if not options.no_connect:
            # Outside the namespace: the server outlives us, and must be able to reach the user's USB devices.
            adb_client.start_server()
        enter_namespace(["-m", "device_bench.emulator", *argv])
        if options.folder is None:
            scratch = Path(tempfile.mkdtemp(prefix="edgeport-emulator-"))
        home = scratch or Path(options.folder).resolve()
        first = options.port or free_ports(options.devices)
        devices = []
        for number in range(1, options.devices + 1):
            folder = home / f"device{number}"
            folder.mkdir(parents=True, exist_ok=True)
            devices.append(EmulatedDevice(folder, first + number - 1))
        for number, fault in wanted:
            faults.put(devices[number - 1].folder, fault)
        asyncio.run(serve(devices, connect=not options.no_connect, follow_stdin=options.follow_stdin))
    except EdgeportError as error:
        fail(error)
        return error.exit_code
    finally:
        if scratch is not None:
            _remove(scratch)
    return 0


def _remove(scratch: Path) -> None:
    """Remove the devices' own files. What is mounted below their roots is the host's: those folders are only ever
    unmounted and removed when empty."""
    for device in scratch.iterdir():
        root = device / "root"
        for part in ("data", "sys", "system"):
            shutil.rmtree(root / part, ignore_errors=True)
        mounted = [root / "proc" / "cpuinfo", *(root / name for name in MOUNTED)]
        shell.run(["umount", "--lazy", *mounted], check=False)
        for place in [root / name for name in MOUNTED]:
            with contextlib.suppress(OSError):
                place.rmdir()
        for file in (root / "tmp" / "cpuinfo", root / BATTERY, device / faults.FILE):
            file.unlink(missing_ok=True)
        for place in (root / "tmp", root, device):
            with contextlib.suppress(OSError):
                place.rmdir()
    with contextlib.suppress(OSError):
        scratch.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
