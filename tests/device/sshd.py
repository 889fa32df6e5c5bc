"""A real sshd on loopback, for one test: Debian's, unpacked into the test's folder where it is not installed."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_PACKAGES = ("openssh-server", "libwrap0")


@dataclass(frozen=True, kw_only=True)
class Sshd:
    """A running server: the client configuration that knows it as ``board``, and the server's process."""

    config: Path
    process: subprocess.Popen[bytes]
    host: str = "board"


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """The server's program, and the libraries that were unpacked with it; None: it is installed."""

    program: Path
    libraries: Path | None = None


def binaries(folder: Path) -> Binaries:
    """The installed sshd, or Debian's unpacked into ``folder``: installing it would start a server on port 22."""
    installed = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if installed:
        return Binaries(program=Path(installed))
    for package in _PACKAGES:
        done = subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"there is no sshd here, and Debian's {package} cannot be downloaded")
    for archive in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, folder / "root"], check=True)
    usr = folder / "root" / "usr"
    return Binaries(program=usr / "sbin" / "sshd", libraries=next((usr / "lib").glob("*-linux-gnu")))


def _command(folder: Path, found: Binaries, server_config: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
    command: list[str | Path] = [found.program, "-D", "-e", "-f", server_config]
    if found.libraries is None:
        return command, {}
    environment = {"LD_LIBRARY_PATH": str(found.libraries)}
    if os.geteuid() != 0:
        return command, environment
    # As root it wants a user and a folder of its own: given to it in a mount namespace, not to this machine.
    users = folder / "passwd"
    users.write_text(Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
    script = 'mount --bind "$1" /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && shift && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh", users, *command], environment


@contextlib.contextmanager
def running(folder: Path, found: Binaries) -> Iterator[Sshd]:
    """Start the server and stop it, and every connection, at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server, client = folder / "sshd_config", folder / "ssh_config"
    server.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nPasswordAuthentication no\nUsePAM no\nPermitRootLogin yes\n"
    )
    options = {
        "HostName": "127.0.0.1",
        "Port": port,
        "User": getpass.getuser(),
        "IdentityFile": f"{folder}/user_key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": f"{folder}/known_hosts",
        "StrictHostKeyChecking": "accept-new",
    }
    client.write_text("Host board\n" + "".join(f"  {name} {value}\n" for name, value in options.items()))
    command, environment = _command(folder, found, server)
    log = folder / "sshd.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        _wait(port, process, log)
        yield Sshd(config=client, process=process)
    finally:
        process.terminate()
        process.wait(10)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, f"sshd ended: {log.read_text()}"
        time.sleep(0.05)
    raise AssertionError(f"sshd does not answer: {log.read_text()}")
