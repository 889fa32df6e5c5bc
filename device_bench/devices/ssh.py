"""A board or server over the OpenSSH client: the user's own configuration, keys and host aliases apply."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from build import shell
from build.errors import DeviceError, DeviceLostError, InputError, RejectedResultError
from device_bench.devices.base import Completed
from device_bench.devices.local import completed
from device_bench.devices.shell_device import ShellDevice

#: ssh's own exit code for a connection that failed or broke.
_SSH_FAILED = 255
_OPTIONS = (
    "-o",
    "LogLevel=ERROR",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
)
#: what a Unix socket's path may have (sun_path), and what ssh puts at its end: a hash and a temporary suffix.
_SOCKET_PATH, _SOCKET_NAME = 104, 60
#: seconds for one file to arrive.
_COPY_TIMEOUT = 900.0


class SshTransport:
    """One command, one ``ssh``.

    Args:
        host: ``[user@]host`` or an alias of the ssh configuration.
        config: an ssh configuration file in place of the user's.
    """

    kind = "ssh"

    def __init__(self, host: str, config: Path | None = None) -> None:
        if not host or host.startswith("-") or any(c.isspace() for c in host):
            raise InputError(f"'{host}' is not a host", remedy="Name it as ssh does: user@host, or an alias.")
        self.serial = host
        self._config = () if config is None else ("-F", str(config))
        # One connection for all commands: a handshake for each would take longer than most of them.
        self._folder = Path(tempfile.mkdtemp(prefix="edgeport-ssh-"))
        self._shared: tuple[str, ...] = ()
        if len(str(self._folder)) + _SOCKET_NAME < _SOCKET_PATH:
            path = str(self._folder).replace("%", "%%")
            self._shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={path}/%C", "-o", "ControlPersist=60")

    def _command(self, script: str) -> Sequence[str]:
        # The login shell on the other side may be any: it only has to run sh with one quoted word.
        return ["ssh", *self._config, *_OPTIONS, *self._shared, "--", self.serial, f"exec sh -c {shlex.quote(script)}"]

    def shell(self, script: str, *, timeout: float) -> Completed:
        """See :class:`device_bench.devices.shell_device.Transport`."""
        done = shell.transfer(self._command(script), timeout=timeout)
        self._check(done.returncode, done.stderr)
        return completed(done)

    def send(self, local: Path, remote: str) -> None:
        """Copy through ``cat``: no second protocol with quoting rules of its own."""
        with local.open("rb") as stream:
            try:
                done = shell.transfer(
                    self._command(f"cat > {shlex.quote(remote)}"), stdin=stream, timeout=_COPY_TIMEOUT
                )
            except TimeoutError as error:
                raise DeviceLostError(f"ssh {self.serial}: {local.name} did not arrive") from error
        self._check(done.returncode, done.stderr)
        if done.returncode != 0:
            raise DeviceError(f"ssh {self.serial}: cannot write {local.name}: {_last(done.stderr)}")

    def receive(self, remote: str, local: Path, *, max_bytes: int) -> None:
        """Copy back; never more than ``max_bytes``."""
        with local.open("wb") as stream:
            try:
                done = shell.transfer(
                    self._command(f"head -c {max_bytes + 1} < {shlex.quote(remote)}"),
                    stdout=stream,
                    timeout=_COPY_TIMEOUT,
                )
            except TimeoutError as error:
                raise DeviceLostError(f"ssh {self.serial}: {local.name} did not arrive") from error
        self._check(done.returncode, done.stderr)
        if done.returncode != 0:
            raise RejectedResultError(f"ssh {self.serial}: cannot fetch {local.name}: {_last(done.stderr)}")
        if local.stat().st_size > max_bytes:
            raise RejectedResultError(
                f"ssh {self.serial}: {local.name} has more than the {max_bytes} bytes it may have"
            )

    def wait(self, timeout: float) -> bool:
        """Try again until the host answers."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if self.shell("true", timeout=15).code == 0:
                    return True
            except (DeviceLostError, TimeoutError):
                pass
            if time.monotonic() >= deadline:
                return False
            time.sleep(1)

    def close(self) -> None:
        """End the shared connection."""
        if self._shared:
            with contextlib.suppress(TimeoutError):
                shell.transfer(["ssh", *self._config, *self._shared, "-O", "exit", "--", self.serial], timeout=10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _check(self, code: int, stderr: bytes) -> None:
        if code == _SSH_FAILED:
            raise DeviceLostError(
                f"ssh {self.serial}: {_last(stderr)}",
                remedy="Does 'ssh HOST true' work without asking for a password?",
            )


def _last(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no reason given"


def ssh_device(host: str, *, config: Path | None = None, root: str = "~/.cache/edgeport") -> ShellDevice:
    """The device that ``ssh host`` reaches."""
    return ShellDevice(SshTransport(host, config), root)
