"""The lab over a real sshd on loopback, and on this machine: real CPUs, so budgets may pass or fail here."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.errors import DeviceError, DeviceLostError, HarnessError, InputError
from device_bench.devices.local import local_device
from device_bench.devices.ssh import SshTransport, ssh_device
from tests.device import sshd
from tests.device.built import make_out
from tests.device.conftest import Lab


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> sshd.Binaries:
    return sshd.binaries(tmp_path_factory.mktemp("openssh"))


@pytest.fixture(scope="module")
def server(binaries: sshd.Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd"), binaries) as found:
        yield found


def test_over_ssh_as_on_this_host(lab: Lab, server: sshd.Sshd) -> None:
    run = lab("bench-linux-arm64", "--serial", server.host, "--ssh-config", str(server.config), "--targets", "litert")
    assert run.code == 0, run.stderr
    (value,) = run.measurements.values()
    assert value["device"]["kind"] == "ssh"
    assert value["emulated"] is False
    assert value["host"]["identical"] is True
    assert value["accuracy"]["metric"]["value"] == value["accuracy"]["metric"]["reference"]


def test_push_over_ssh_is_by_content_and_survives_odd_names(tmp_path: Path, server: sshd.Sshd) -> None:
    device = ssh_device(server.host, config=server.config, root=str(tmp_path / 'it\'s a $(board) "folder"'))
    file = tmp_path / "model"
    file.write_bytes(b"a" * 70_000)
    name = "models/a b;`id`.pte"
    assert device.push({name: file}).bytes == 70_000
    assert device.push({name: file}).bytes == 0
    file.write_bytes(b"b" * 70_000)
    assert device.push({name: file}).bytes == 70_000
    device.pull(name, tmp_path / "back", max_bytes=70_000)
    assert (tmp_path / "back").read_bytes() == b"b" * 70_000
    assert [p.name for p in (tmp_path / 'it\'s a $(board) "folder"' / "models").iterdir()] == ["a b;`id`.pte"]


def test_a_connection_that_breaks_is_a_lost_device(tmp_path: Path, binaries: sshd.Binaries) -> None:
    with sshd.running(tmp_path / "server", binaries) as own:
        device = ssh_device(own.host, config=own.config, root=str(tmp_path / "root"))
        device.facts()
        # The server's children are the connections; the server itself stays.
        pids = f"ps -o pid= --ppid {own.process.pid}"
        breaking = threading.Timer(1.0, lambda: subprocess.run(["sh", "-c", f"kill $({pids})"], check=False))
        breaking.start()
        started = time.monotonic()
        with pytest.raises(DeviceLostError):
            device.run(["sleep", "60"], folder=".", timeout=50)
        assert time.monotonic() - started < 40
        breaking.join()
        assert device.wait(30)
        assert device.run(["echo", "back"], folder=".", timeout=20).stdout == "back\n"


def test_a_host_that_does_not_answer(tmp_path: Path, lab: Lab) -> None:
    config = tmp_path / "config"
    config.write_text("Host board\n  HostName 127.0.0.1\n  Port 1\n")
    device = ssh_device("board", config=config)
    with pytest.raises(DeviceLostError, match="refused"):
        device.facts()
    assert device.wait(0) is False


@pytest.mark.parametrize("host", ["-oProxyCommand=reboot", "", "two words"])
def test_a_host_is_never_an_option(host: str) -> None:
    with pytest.raises(InputError, match="is not a host"):
        SshTransport(host)


def test_budgets_pass_and_fail_on_a_real_cpu(tmp_path: Path, lab: Lab) -> None:
    arguments = ("--targets", "executorch", "--min-runs", "150", "--max-spread", "100")
    generous = make_out(tmp_path / "a", targets=["executorch"], budgets=[{"peak_mb": 1e6}])
    run = lab("bench-local", *arguments, out=generous)
    (row,) = run.summary["rows"]
    assert row["verdict"]["word"] == "PASS", row
    assert run.code == 0
    tight = tmp_path / "tight.toml"
    tight.write_text("[[budget]]\npeak_mb = 0.001\n")
    again = lab("bench-local", "--resume", "--budgets", str(tight), out=generous)
    (row,) = again.summary["rows"]
    assert row["verdict"]["word"] == "FAIL"
    assert "peak memory" in row["verdict"]["reasons"][0]
    assert again.code == 6


def test_a_harness_that_does_not_end_is_ended(tmp_path: Path) -> None:
    device = local_device(tmp_path / "root")
    started = time.monotonic()
    with pytest.raises(HarnessError, match="still running after 1 s"):
        device.run(["sleep", "60"], folder=".", timeout=1)
    assert time.monotonic() - started < 30


def test_what_is_not_built_is_said(tmp_path: Path, lab: Lab) -> None:
    run = lab("bench-local", "--precisions", "int8-static")
    assert run.code == 2
    assert "digits_cnn executorch int8-static is not built" in run.stderr
    assert "nox -s build-linux-arm64 -- --model digits_cnn --precisions int8-static" in run.stderr
    assert not (tmp_path / "results").exists()


def test_a_file_that_is_not_what_was_built_is_not_measured(tmp_path: Path, lab: Lab) -> None:
    out = make_out(tmp_path / "out", targets=["litert"])
    with (out / "digits_cnn" / "litert" / "fp32" / "model.tflite").open("ab") as stream:
        stream.write(b"x")
    run = lab("bench-local", "--targets", "litert", out=out)
    assert run.code == 2
    assert "not the file that was built" in run.stderr


def test_two_runs_never_measure_on_one_device(tmp_path: Path, built: Path, lab: Lab) -> None:
    import fcntl

    name = local_device(tmp_path).name
    lock = built / "bench" / "locks" / f"{name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = lab("bench-local", "--targets", "litert")
    assert run.code == DeviceError.exit_code
    assert "another run" in run.stderr
