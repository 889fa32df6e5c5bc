"""An Android device over adb."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from build.errors import DeviceError, MissingToolError
from build.log import say
from device_bench.devices import adb_client
from device_bench.devices.base import Completed
from device_bench.devices.shell_device import ShellDevice

ROOT = "/data/local/tmp/edgeport"
_ADDRESS = re.compile(r"[^\s:]+:\d{1,5}")
#: adb states, and what to do about each.
_STATES = {
    "unauthorized": "Unlock the device and accept this computer's key.",
    "authorizing": "Unlock the device and accept this computer's key.",
    "offline": "Reconnect the cable, or restart adb on the device.",
    "no permissions": "Install Android's udev rules (package android-sdk-platform-tools-common), or run as root.",
    "bootloader": "Boot the device into Android.",
    "recovery": "Boot the device into Android.",
    "sideload": "Boot the device into Android.",
}
CONNECT = (
    "Connect a phone by USB with USB debugging on (Settings, Developer options) and accept the key it asks about; "
    "or 'adb connect HOST:PORT'; or run without a phone: -- --emulated 1"
)


class AdbTransport:
    """One serial on the adb server."""

    kind = "adb"

    def __init__(self, serial: str) -> None:
        self.serial = serial

    def shell(self, script: str, *, timeout: float) -> Completed:
        """See :class:`device_bench.devices.shell_device.Transport`."""
        return adb_client.run_shell(self.serial, script, timeout=timeout)

    def send(self, local: Path, remote: str) -> None:
        """Push."""
        adb_client.push(self.serial, local, remote)

    def receive(self, remote: str, local: Path, *, max_bytes: int) -> None:
        """Pull."""
        adb_client.pull(self.serial, remote, local, max_bytes=max_bytes)

    def wait(self, timeout: float) -> bool:
        """Wait for the serial to be a working device again; one that has an address is connected to again."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                state = adb_client.devices().get(self.serial)
                if state == "device" and adb_client.run_shell(self.serial, "true", timeout=10).code == 0:
                    return True
                if state != "unauthorized" and _ADDRESS.fullmatch(self.serial):
                    if state == "offline":  # the server holds on to the broken connection, and says "already connected"
                        adb_client.disconnect(self.serial)
                    adb_client.connect(self.serial)
            except (DeviceError, TimeoutError):
                pass
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.5)

    def close(self) -> None:
        """Nothing to let go of."""


def adb_device(serial: str, *, root: str = ROOT) -> ShellDevice:
    """The device of a serial."""
    return ShellDevice(AdbTransport(serial), root)


def find(serials: Sequence[str]) -> list[ShellDevice]:
    """The named devices, or every one that adb lists. One that is not ready is among them: its own rows say why.

    Raises:
        DeviceError: there is none, or none is ready; the message says what to do.
        MissingToolError: adb is not installed.
    """
    try:
        adb_client.start_server()
    except MissingToolError as error:
        raise MissingToolError(error.message, remedy="Run: nox -s setup") from error
    states = _states(serials)
    wanted = list(dict.fromkeys(serials or states))
    if not wanted:
        raise DeviceError("no Android device is connected", remedy=CONNECT)
    for serial in wanted:
        if serial not in states:
            known = ", ".join(states) or "none"
            raise DeviceError(f"no device has serial '{serial}'", remedy=f"Connected: {known}. {CONNECT}")
    odd = {serial: states[serial] for serial in wanted if states[serial] != "device"}
    for serial, state in odd.items():
        say(f"adb {serial} is {state}. {_STATES.get(state, '')}")
    if len(odd) == len(wanted):
        serial, state = next(iter(odd.items()))
        raise DeviceError(f"no Android device is ready: '{serial}' is {state}", remedy=_STATES.get(state, CONNECT))
    return [adb_device(serial) for serial in wanted]


def _states(serials: Sequence[str]) -> dict[str, str]:
    """The server's list. A device that is only just coming up is given a few seconds; an address is connected to."""
    deadline = time.monotonic() + 5
    while True:
        states = adb_client.devices()
        for serial in serials:
            if serial not in states and _ADDRESS.fullmatch(serial):
                answer = adb_client.connect(serial)
                if "connected to" not in answer:
                    raise DeviceError(f"cannot connect to '{serial}': {answer}", remedy=CONNECT)
        wanted = [s for s in (serials or states) if s in states or _ADDRESS.fullmatch(s)]
        unsettled = [s for s in wanted if states.get(s) in (None, "offline", "connecting", "authorizing")]
        if not unsettled or time.monotonic() > deadline:
            return states
        time.sleep(0.3)
