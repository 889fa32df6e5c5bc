"""A device that has a POSIX shell: everything the lab needs, on top of four primitive operations of a transport."""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from build.cache import sha256_file
from build.errors import DeviceError, DeviceLostError, HarnessError
from build.log import say
from device_bench.devices.base import Completed, Conditions, Facts, Pushed, safe_name
from device_bench.devices.survey import CONDITIONS_SCRIPT, FACTS_SCRIPT, read_conditions, read_facts

#: for commands that only look, in seconds.
_QUICK = 30.0
#: bytes of a push from which on its progress is shown.
_TALKATIVE = 1_000_000


class Transport(Protocol):
    """How bytes and commands get to a device."""

    #: ``local``, ``adb`` or ``ssh``.
    kind: str
    serial: str

    def shell(self, script: str, *, timeout: float) -> Completed:
        """Run a script in the device's shell.

        Raises:
            DeviceLostError: the connection broke before the exit code arrived.
            TimeoutError: still running after ``timeout`` seconds; it was ended.
        """
        ...

    def send(self, local: Path, remote: str) -> None:
        """Copy a file to the device. Raises DeviceLostError, and DeviceError when the device refuses it."""
        ...

    def receive(self, remote: str, local: Path, *, max_bytes: int) -> None:
        """Copy a file from the device. Raises DeviceLostError, DeviceError, RejectedResultError (too large)."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait until the device can be reached again."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class ShellDevice:
    """A :class:`device_bench.devices.base.Device` on a transport.

    Args:
        root: absolute path of the work folder on the device, or one below ``$HOME`` when it starts with ``~/``.
    """

    def __init__(self, transport: Transport, root: str) -> None:
        self.name = safe_name(f"{transport.kind}-{transport.serial}")
        self._transport = transport
        self._wanted_root = root
        self._root: str | None = None
        self._facts: Facts | None = None
        self._hashes: dict[tuple[Path, int, int], str] = {}

    @property
    def root(self) -> str:
        """The work folder on the device, made when it is not there."""
        if self._root is None:
            given = self._wanted_root
            place = f'"$HOME"/{shlex.quote(given[2:])}' if given.startswith("~/") else shlex.quote(given)
            done = self._shell(f"mkdir -p {place} && cd {place} && pwd -P && rm -rf jobs/*.part-*")
            if done.code != 0 or not done.stdout.startswith("/"):
                raise DeviceError(f"{self.name}: cannot make the work folder {given}: {_why(done)}")
            self._root = done.stdout.splitlines()[0]
        return self._root

    def path(self, relative: str) -> str:
        """A path below the work folder.

        Raises:
            DeviceError: it would lie outside.
        """
        pure = PurePosixPath(relative)
        if pure.is_absolute() or ".." in pure.parts or "\0" in relative or "\n" in relative:
            raise DeviceError(f"{self.name}: '{relative!r}' is not a path below the work folder")
        return f"{self.root}/{pure}"

    def facts(self) -> Facts:
        """See the Protocol."""
        if self._facts is None:
            done = self._shell(FACTS_SCRIPT)
            self._facts = read_facts(self._transport.kind, self._transport.serial, done.stdout)
        return self._facts

    def unknown(self) -> Facts:
        """See the Protocol."""
        return Facts(kind=self._transport.kind, serial=self._transport.serial, arch="unknown", machine="unknown")

    def conditions(self) -> Conditions:
        """See the Protocol."""
        return read_conditions(self._shell(CONDITIONS_SCRIPT).stdout)

    def push(self, files: Mapping[str, Path]) -> Pushed:
        """See the Protocol."""
        wanted = {self.path(remote): (local, self._sha256(local)) for remote, local in files.items()}
        there = self._remote_hashes(list(wanted))
        missing = {remote: pair for remote, pair in wanted.items() if there.get(remote) != pair[1]}
        total = sum(local.stat().st_size for local, _ in missing.values())
        self._make_folders(list(missing))
        sent = 0
        for remote, (local, digest) in missing.items():
            size = local.stat().st_size
            sent += size
            if total >= _TALKATIVE:
                name = PurePosixPath(remote).name
                say(f"{self.name}: sending {name}, {size / 1e6:.1f} MB ({sent / 1e6:.1f} of {total / 1e6:.1f} MB)")
            self._send(local, remote, digest)
        return Pushed(files=len(missing), bytes=total, unchanged=len(wanted) - len(missing))

    def run(self, command: Sequence[str], *, folder: str, timeout: float) -> Completed:
        """See the Protocol."""
        # exec: the harness itself is what the connection's end ends.
        script = f"cd {shlex.quote(self.path(folder))} && exec {shlex.join(command)}"
        try:
            return self._transport.shell(script, timeout=timeout)
        except TimeoutError as error:
            raise HarnessError(f"{self.name}: the harness was still running after {timeout:g} s") from error

    def pull(self, remote: str, local: Path, *, max_bytes: int) -> None:
        """See the Protocol."""
        self._transport.receive(self.path(remote), local, max_bytes=max_bytes)

    def remove(self, paths: Sequence[str]) -> None:
        """See the Protocol."""
        if paths:
            self._shell("rm -rf -- " + " ".join(shlex.quote(self.path(p)) for p in paths))

    def wait(self, timeout: float) -> bool:
        """See the Protocol."""
        self._root = None  # a reboot may have emptied it
        return self._transport.wait(timeout)

    def close(self) -> None:
        """See the Protocol."""
        self._transport.close()

    def _shell(self, script: str) -> Completed:
        try:
            return self._transport.shell(script, timeout=_QUICK)
        except TimeoutError as error:
            raise DeviceLostError(f"{self.name}: no answer for {_QUICK:g} s") from error

    def _sha256(self, local: Path) -> str:
        info = local.stat()
        key = (local, info.st_size, info.st_mtime_ns)
        if key not in self._hashes:
            self._hashes[key] = sha256_file(local)
        return self._hashes[key]

    def _remote_hashes(self, paths: Sequence[str]) -> dict[str, str]:
        """Path -> sha256 of the files that are there."""
        # One file a line and an index in front: sha256sum escapes odd names, so its own column is not relied on.
        lines = [f"echo {i} $(sha256sum < {shlex.quote(path)})" for i, path in enumerate(paths)]
        done = self._shell("{ " + "\n".join(lines) + "\n} 2>/dev/null")
        found = {}
        for line in done.stdout.splitlines():
            match = re.match(r"(\d+) ([0-9a-f]{64})\b", line)
            if match and int(match[1]) < len(paths):
                found[paths[int(match[1])]] = match[2]
        return found

    def _make_folders(self, remotes: Sequence[str]) -> None:
        """The folders of files that are to be sent, without what broken transfers left of the same files."""
        if not remotes:
            return
        folders = " ".join(shlex.quote(f) for f in sorted({str(PurePosixPath(r).parent) for r in remotes}))
        parts = " ".join(f"{shlex.quote(r)}.part-*" for r in remotes)
        done = self._shell(f"mkdir -p {folders} && rm -f {parts}")
        if done.code != 0:
            raise DeviceError(f"{self.name}: cannot make a folder on the device: {_why(done)}")

    def _send(self, local: Path, remote: str, digest: str) -> None:
        part = f"{remote}.part-{uuid.uuid4().hex[:8]}"
        name, there, target = PurePosixPath(remote).name, shlex.quote(part), shlex.quote(remote)
        try:
            self._transport.send(local, part)
            done = self._shell(
                f"sum=$(sha256sum < {there}); echo ${{sum%% *}}; "
                f'[ "${{sum%% *}}" = {digest} ] && chmod 755 {there} && mv -f {there} {target}'
            )
            if done.code != 0:
                got = done.stdout.strip()
                if got != digest:
                    raise DeviceError(
                        f"{self.name}: {name} arrived damaged (sha256 {got[:12]}, not {digest[:12]})",
                        remedy="Is the device's disk full?",
                    )
                raise DeviceError(f"{self.name}: cannot put {name} in place: {_why(done)}")
        except DeviceLostError:
            raise
        except DeviceError:
            self._shell(f"rm -f {there}")
            raise


def _why(done: Completed) -> str:
    text = (done.stderr or done.stdout).strip().splitlines()
    return text[-1][:200] if text else f"exit code {done.code}"
