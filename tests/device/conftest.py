"""Fixtures of the lab's tests: an output folder, an adb server of their own, emulated devices, the command line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from device_bench import measurement
from device_bench.emulator.launch import Started, emulated_devices
from tests.conftest import ROOT, environment, require_tools
from tests.device.built import make_out

#: short: these tests look at what is recorded, not at how fast it was.
QUICK = [
    *("--warmup-runs", "1", "--warmup-seconds", "0", "--min-runs", "3", "--min-seconds", "0.01"),
    *("--max-seconds", "20", "--repeats", "1", "--seed", "7"),
]


@dataclass(frozen=True, kw_only=True)
class LabRun:
    """How a lab run ended, and what it left in its folder."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def measurements(self) -> dict[str, dict[str, Any]]:
        """File -> measurement, read as the lab reads them."""
        return {str(p.relative_to(self.folder)): measurement.read(p) for p in sorted(self.folder.glob("*/*.json"))}

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        value: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return value


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    """What every lab test needs of the system."""
    require_tools("g++", "aarch64-linux-gnu-g++", "/usr/include/nlohmann/json.hpp", "qemu-aarch64-static", "adb", "ssh")


Lab = Callable[..., LabRun]


def command(session: str, out: Path, results: Path, *arguments: str) -> list[str]:
    """The command line of a lab run."""
    return [
        *(sys.executable, "-m", "device_bench", session, "--out", str(out), "--results", str(results)),
        *(arguments if "--resume" in arguments else [*QUICK, *arguments]),
    ]


def run_folder(results: Path) -> Path:
    """The folder of the only run below a results folder."""
    (folder,) = results.glob("run-*")
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with both targets."""
    return make_out(tmp_path_factory.mktemp("built") / "out")


@pytest.fixture
def lab(built: Path, tmp_path: Path) -> Lab:
    """Run a session on ``built``, with results in this test's own folder."""

    def run(session: str, *arguments: str, out: Path = built) -> LabRun:
        done = subprocess.run(
            command(session, out, tmp_path / "results", *arguments),
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        folders = list((tmp_path / "results").glob("run-*"))
        return LabRun(
            code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            folder=folders[0] if len(folders) == 1 else tmp_path,
        )

    return run


@pytest.fixture(scope="session")
def namespaces() -> None:
    """A kernel that lets an emulated device live in a namespace of its own, with qemu registered there."""
    mount = "mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc"
    probe = subprocess.run(
        ["unshare", "-Urm", "--propagation", "private", "sh", "-c", mount], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"emulated devices need user namespaces and Linux 6.7 or later: {probe.stderr.strip()}")


@pytest.fixture(scope="session")
def adb_server(namespaces: None) -> Iterator[int]:
    """A port of our own for the adb server, so that neither the user's devices nor other tests are touched."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    old = os.environ.get("ANDROID_ADB_SERVER_PORT")
    os.environ["ANDROID_ADB_SERVER_PORT"] = str(port)
    yield port
    subprocess.run(["adb", "-P", str(port), "kill-server"], capture_output=True, check=False)
    if old is None:
        del os.environ["ANDROID_ADB_SERVER_PORT"]
    else:
        os.environ["ANDROID_ADB_SERVER_PORT"] = old


@pytest.fixture(scope="session")
def two_devices(adb_server: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Two emulated devices, shared by the tests of a file: each test leaves them well-behaved."""
    with emulated_devices(tmp_path_factory.mktemp("emulated"), 2) as started:
        yield started
