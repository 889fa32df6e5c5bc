"""What a device is to the lab, and the types it speaks. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a device says of itself. None: it does not say.

    Attributes:
        serial: as its transport addresses it.
        arch: the harness it runs: ``x86_64`` or ``aarch64``.
        machine: the kernel's own word for the CPU (``uname -m``).
        emulated: its programs run on an emulated CPU: times mean nothing there.
        why_emulated: how that was found out.
    """

    kind: str
    serial: str
    arch: str
    machine: str
    manufacturer: str | None = None
    model: str | None = None
    soc: str | None = None
    os: str | None = None
    abi: str | None = None
    cores: int | None = None
    memory_mb: int | None = None
    emulated: bool = False
    why_emulated: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For a measurement."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How a device is doing at one moment. None: it does not say.

    Attributes:
        celsius: the temperature that the gate looks at, and ``sensor`` where it comes from.
        battery_percent, charging: of the battery, where there is one.
        load1: runnable processes, averaged over a minute.
        governors: the CPU frequency governors in use.
        khz: CPU -> present clock in kHz.
    """

    celsius: float | None = None
    sensor: str | None = None
    battery_percent: float | None = None
    charging: bool | None = None
    load1: float | None = None
    governors: tuple[str, ...] = ()
    khz: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For a measurement."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command on a device ended. Output beyond the device's limit is cut, and ``cut`` says so."""

    code: int
    stdout: str
    stderr: str
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a push did: bytes and files sent, and files that were there already, byte for byte."""

    files: int = 0
    bytes: int = 0
    unchanged: int = 0


class Place(Protocol):
    """Where the lab can measure: a device, a browser, this machine.

    Every method raises DeviceLostError when the connection breaks, and DeviceError when the place says no.
    """

    #: unique among devices, and fit for a file name: ``adb-R58M…``.
    name: str

    def facts(self) -> Facts:
        """What the device says of itself, asked once per connection."""
        ...

    def unknown(self) -> Facts:
        """The facts of a device that cannot be asked."""
        ...

    def conditions(self) -> Conditions:
        """How it is doing now."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait for a lost one to come back; False when it did not."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Device(Place, Protocol):
    """A place with files and commands. Paths are relative to the device's own work folder."""

    def push(self, files: Mapping[str, Path]) -> Pushed:
        """Make the files be there: by sha256, to a temporary name, checked, then renamed.

        Args:
            files: path on the device -> local file.
        """
        ...

    def run(self, command: Sequence[str], *, folder: str, timeout: float) -> Completed:
        """Run a command in a folder of the device, to its end.

        Raises:
            HarnessError: it was still running after ``timeout`` seconds, and was ended.
        """
        ...

    def pull(self, remote: str, local: Path, *, max_bytes: int) -> None:
        """Fetch one file.

        Raises:
            RejectedResultError: it is not there, or larger than ``max_bytes``.
        """
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files, those that are there."""
        ...


def safe_name(text: str) -> str:
    """A serial or host as a file name: odd characters become ``_``, and a hash keeps two such names apart."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", text).strip(".") or "_"
    if plain == text:
        return plain
    import hashlib

    return f"{plain[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
