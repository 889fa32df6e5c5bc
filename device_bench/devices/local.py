"""This machine as a device."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from build import shell
from build.errors import DeviceError, RejectedResultError
from device_bench.devices.base import Completed
from device_bench.devices.shell_device import ShellDevice

#: what is kept of a command's output, in bytes per stream.
OUTPUT_LIMIT = 1 << 20


class LocalTransport:
    """Commands and copies on this machine."""

    kind = "local"

    def __init__(self) -> None:
        self.serial = platform.node() or "here"

    def shell(self, script: str, *, timeout: float) -> Completed:
        """See :class:`device_bench.devices.shell_device.Transport`."""
        return completed(shell.transfer(["sh", "-c", script], timeout=timeout))

    def send(self, local: Path, remote: str) -> None:
        """Copy."""
        try:
            shutil.copyfile(local, remote)
        except OSError as error:
            raise DeviceError(f"cannot copy {local.name}: {error.strerror or error}") from error

    def receive(self, remote: str, local: Path, *, max_bytes: int) -> None:
        """Copy back."""
        try:
            size = Path(remote).stat().st_size
            if size > max_bytes:
                raise RejectedResultError(
                    f"{Path(remote).name} has {size} bytes, more than the {max_bytes} it may have"
                )
            shutil.copyfile(remote, local)
        except OSError as error:
            raise RejectedResultError(f"cannot copy {Path(remote).name}: {error.strerror or error}") from error

    def wait(self, timeout: float) -> bool:
        """We are always here."""
        return True

    def close(self) -> None:
        """Nothing to let go of."""


def completed(done: object) -> Completed:
    """A finished process as a :class:`Completed`, its output cut to a size that nobody minds."""
    import subprocess

    assert isinstance(done, subprocess.CompletedProcess)
    cut = max(len(done.stdout), len(done.stderr)) > OUTPUT_LIMIT
    # The end is kept: it is where the end-of-run marker would be.
    texts = [stream[-OUTPUT_LIMIT:].decode(errors="replace") for stream in (done.stdout, done.stderr)]
    return Completed(code=done.returncode, stdout=texts[0], stderr=texts[1], cut=cut)


def local_device(root: Path) -> ShellDevice:
    """This machine, with its work folder at ``root``."""
    return ShellDevice(LocalTransport(), str(root.resolve()))
