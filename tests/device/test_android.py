"""The lab over the real adb, on two emulated devices: arm64 programs under qemu, whose times mean nothing."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.errors import DeviceError, DeviceLostError
from device_bench.devices import adb_client
from device_bench.devices.adb import AdbTransport, adb_device, find
from device_bench.devices.shell_device import ShellDevice
from device_bench.emulator import faults
from device_bench.emulator.faults import ALWAYS, Fault
from device_bench.emulator.launch import Started
from tests.conftest import ROOT, environment
from tests.device.built import make_out, make_record, put_artifact
from tests.device.conftest import Lab, LabRun, command, run_folder


@pytest.fixture(autouse=True)
def well_behaved(two_devices: Started) -> Iterator[None]:
    yield
    for folder in two_devices.folders:
        faults.put(folder, None)
    for serial in two_devices.serials:
        assert AdbTransport(serial).wait(30), f"{serial} did not come back"


def serials(devices: Started) -> list[str]:
    return [word for serial in devices.serials for word in ("--serial", serial)]


def of_device(run: LabRun, serial: str) -> dict[str, dict[str, object]]:
    return {f: m for f, m in run.measurements.items() if m["device"]["serial"] == serial}


def test_both_targets_on_both_devices_agree_with_this_host(lab: Lab, two_devices: Started) -> None:
    run = lab("bench-android", *serials(two_devices))
    assert run.code == 0, run.stderr
    assert len(run.measurements) == 4
    for value in run.measurements.values():
        assert value["status"] == "ok"
        assert value["emulated"] is True
        assert value["device"]["arch"] == "aarch64"
        assert value["cpu"]["arch"] == "aarch64"
        assert value["runtime"]["name"] == value["measurement"]["target"]
        # Other kernels than this host's: sums in another order, stated and not flagged.
        assert value["host"]["flagged"] is False, value["host"]
        assert value["host"]["max_abs_diff"] < 2e-5
        assert value["host"]["identical"] is (value["host"]["differing"] == 0)
        assert value["accuracy"]["metric"] == {"name": "top1_accuracy", "value": 0.958333, "reference": 0.958333}
        assert value["accuracy"]["changed_decisions"] == 0
        assert value["threads"]["busy"] in (1, None)  # None: the loop was too short for the kernel's accounts
        conditions = value["conditions"]
        clock = {"id": 0, "khz": 1_800_000, "max_khz": 2_400_000, "governor": "schedutil"}
        assert conditions["harness_before"]["cpus"][0] == conditions["harness_after"]["cpus"][0] == clock
        zone = {"zone": "thermal_zone0", "type": "cpu-0-0", "celsius": 41.5}
        assert conditions["harness_before"]["thermal"] == [zone]
        assert conditions["before"]["governors"] == ["schedutil"]
        assert conditions["before"]["khz"] == {"cpu0": 1_800_000, "cpu1": 1_800_000}
        assert (conditions["before"]["celsius"], conditions["before"]["sensor"]) == (28.0, "battery")
        assert len(value["samples_ns"]) == value["statistics"]["samples"] >= 3
        assert "emulated" in [w["code"] for w in value["warnings"]]
    assert "4 of 4 measurements taken" in run.stdout


def test_no_budget_passes_on_an_emulated_device(tmp_path: Path, lab: Lab, two_devices: Started) -> None:
    out = make_out(tmp_path / "out", targets=["litert"], budgets=[{"p95_ms": 1e9, "peak_mb": 1e9}])
    run = lab("bench-android", "--serial", two_devices.serials[0], "--targets", "litert", "--require-pass", out=out)
    (row,) = run.summary["rows"]
    assert row["verdict"]["word"] == "INCONCLUSIVE"
    assert "emulated" in row["verdict"]["reasons"][0]
    assert run.code == 6


def test_a_second_push_sends_nothing_and_a_retrained_model_of_equal_size_is_sent(
    tmp_path: Path, two_devices: Started
) -> None:
    device = adb_device(two_devices.serials[0])
    model = tmp_path / "model.pte"
    model.write_bytes(b"a" * 100_000)
    files = {"models/a/model.pte": model, "models/b/same.pte": model}
    first, second = device.push(files), device.push(files)
    assert (first.files, first.bytes) == (2, 200_000)
    assert (second.files, second.bytes, second.unchanged) == (0, 0, 2)
    model.write_bytes(b"a" * 50_000 + b"b" + b"a" * 49_999)
    third = device.push(files)
    assert (third.files, third.bytes) == (2, 200_000)
    device.pull("models/a/model.pte", tmp_path / "back", max_bytes=100_000)
    assert (tmp_path / "back").read_bytes() == model.read_bytes()


def test_paths_with_spaces_and_shell_characters(tmp_path: Path, two_devices: Started) -> None:
    device = ShellDevice(AdbTransport(two_devices.serials[0]), '/data/local/tmp/it\'s $(reboot) & "more"')
    file = tmp_path / "data"
    file.write_bytes(b"content")
    name = "a b/`id`;'$HOME' \"x\".bin"
    device.push({name: file})
    done = device.run(["cat", "`id`;'$HOME' \"x\".bin"], folder="a b", timeout=20)
    assert (done.code, done.stdout) == (0, "content")
    device.pull(name, tmp_path / "back", max_bytes=100)
    assert (tmp_path / "back").read_bytes() == b"content"
    with pytest.raises(DeviceError, match="below the work folder"):
        device.push({"../outside": file})


def test_a_broken_connection_is_not_a_short_output(two_devices: Started) -> None:
    serial, folder = two_devices.serials[1], two_devices.folders[1]
    faults.put(folder, Fault(kind="drop-run", after=0.2))
    with pytest.raises(DeviceLostError):
        adb_client.run_shell(serial, "echo begun; exec sleep 30 # harness-", timeout=20)


def test_a_transfer_that_changes_a_byte_is_refused_and_leaves_nothing(tmp_path: Path, two_devices: Started) -> None:
    device = adb_device(two_devices.serials[1])
    faults.put(two_devices.folders[1], Fault(kind="corrupt-push"))
    file = tmp_path / "model"
    file.write_bytes(b"x" * 5000)
    with pytest.raises(DeviceError, match="arrived damaged"):
        device.push({"corrupt/model": file})
    done = device.run(["ls"], folder="corrupt", timeout=20)
    assert done.stdout == ""


def faulty_then_resumed(lab: Lab, devices: Started, kind: str, reason: str, *options: str, faulty: int = 1) -> None:
    """The fault strikes one device every time (``faulty``: which); then it is gone, and the run is resumed."""
    faults.put(devices.folders[faulty], Fault(kind=kind, times=ALWAYS))
    run = lab("bench-android", *serials(devices), "--wait", "2", "--retries", "1", *options)
    good, bad = of_device(run, devices.serials[1 - faulty]), of_device(run, devices.serials[faulty])
    assert [m["status"] for m in good.values()] == ["ok", "ok"], run.stderr
    assert [m["status"] for m in bad.values()] == ["failed", "failed"], run.stderr
    for value in bad.values():
        error = value["error"]
        assert isinstance(error, dict)
        assert reason in error["message"], error
    assert run.code == 8
    assert "2 of 4 measurements taken" in run.stdout
    before = {f: (run.folder / f).read_bytes() for f in good}

    faults.put(devices.folders[faulty], None)
    assert AdbTransport(devices.serials[faulty]).wait(30)
    resumed = lab("bench-android", *serials(devices), "--resume")
    assert resumed.code == 0, resumed.stderr
    assert resumed.folder == run.folder
    assert {m["status"] for m in resumed.measurements.values()} == {"ok"}
    assert len(resumed.measurements) == 4
    assert {f: (run.folder / f).read_bytes() for f in good} == before, "what was measured is not measured again"
    assert "4 of 4 measurements taken" in resumed.stdout


def test_a_crash_on_one_device(lab: Lab, two_devices: Started) -> None:
    faulty_then_resumed(lab, two_devices, "crash", "signal 11")


@pytest.mark.slow
def test_a_crash_on_the_other_device(lab: Lab, two_devices: Started) -> None:
    faulty_then_resumed(lab, two_devices, "crash", "signal 11", faulty=0)


@pytest.mark.slow
@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize(
    ("kind", "reason", "options"),
    [
        ("drop-run", "the connection broke", ()),
        ("drop-push", "the connection broke", ()),
        ("hang", "still running after 6 s", ("--timeout", "6")),
        ("garbage", "garbage", ()),
        ("cut-output", "without its end-of-run marker", ()),
        ("bad-result", "the result is not", ()),
        ("gone", "the connection broke", ()),
        ("reboot", "the connection broke", ()),
        ("full-disk", "No space left on device", ()),
    ],
)
def test_every_other_misbehaviour(
    lab: Lab, two_devices: Started, kind: str, reason: str, options: tuple[str, ...], faulty: int
) -> None:
    if kind == "drop-push":  # what is there already is not pushed again
        adb_client.run_shell(two_devices.serials[faulty], "rm -rf /data/local/tmp/edgeport", timeout=20)
    faulty_then_resumed(lab, two_devices, kind, reason, *options, faulty=faulty)


def test_a_drop_and_a_reboot_heal_by_themselves(lab: Lab, two_devices: Started) -> None:
    for folder, kind in zip(two_devices.folders, ("drop-run", "reboot"), strict=True):
        faults.put(folder, Fault(kind=kind, times=1, after=0.3))
    run = lab("bench-android", *serials(two_devices), "--wait", "30", "--targets", "executorch")
    assert run.code == 0, run.stderr
    assert [m["attempts"] for m in run.measurements.values()] == [2, 2]
    assert "2 of 2 measurements taken" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("faulty", [0, 1])
def test_an_unauthorized_device_beside_a_good_one(lab: Lab, two_devices: Started, faulty: int) -> None:
    serial = two_devices.serials[faulty]
    adb_client.disconnect(serial)
    faults.put(two_devices.folders[faulty], Fault(kind="unauthorized", times=ALWAYS))
    adb_client.connect(serial)
    run = lab("bench-android", *serials(two_devices), "--targets", "litert")
    (bad,) = of_device(run, serial).values()
    (good,) = of_device(run, two_devices.serials[1 - faulty]).values()
    assert (good["status"], bad["status"], run.code) == ("ok", "failed", 8)
    assert "authoriz" in json.dumps(bad["error"])
    assert "accept this computer's key" in json.dumps(bad["error"])
    with pytest.raises(DeviceError, match="authoriz"):
        find([serial])
    faults.put(two_devices.folders[faulty], None)
    adb_client.disconnect(serial)
    adb_client.connect(serial)
    resumed = lab("bench-android", *serials(two_devices), "--resume")
    assert resumed.code == 0, resumed.stderr
    assert {m["status"] for m in resumed.measurements.values()} == {"ok"}


def test_a_hot_device_is_waited_for_no_longer_than_allowed(lab: Lab, two_devices: Started) -> None:
    battery = two_devices.folders[0] / "root" / "battery.txt"
    cool = battery.read_text()
    battery.write_text(
        cool.replace("temperature: 280", "temperature: 455").replace("USB powered: false", "USB powered: true")
    )
    try:
        run = lab("bench-android", "--serial", two_devices.serials[0], "--targets", "litert", "--cool-down", "0.2")
    finally:
        battery.write_text(cool)
    (value,) = run.measurements.values()
    assert value["conditions"]["gate"] == {
        "celsius": 45.5,
        "sensor": "battery",
        "limit": 38.0,
        "waited_seconds": pytest.approx(0.2, abs=2),
        "timed_out": True,
    }
    reasons = " ".join(run.summary["rows"][0]["verdict"]["reasons"])
    assert "gate timed out at 45.5 °C" in reasons
    assert "charging" in reasons


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killing_the_host_at_any_moment_loses_nothing(
    built: Path, tmp_path: Path, lab: Lab, two_devices: Started, seed: int
) -> None:
    results, rng = tmp_path / "results", random.Random(seed)
    arguments = command("bench-android", built, results, *serials(two_devices))
    for _ in range(4):
        process = subprocess.Popen(
            arguments, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0.2, 6.0))
        process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        process.wait(60)
        if list(results.glob("run-*/run.json")):
            arguments = command("bench-android", built, results, *serials(two_devices), "--resume")
        elif results.exists():
            shutil.rmtree(results)
    had = {p: p.read_bytes() for p in run_folder(results).glob("*/*.json")} if list(results.glob("run-*")) else {}
    final = lab("bench-android", *serials(two_devices), *(["--resume"] if "--resume" in arguments else []))
    assert final.code == 0, final.stderr
    assert len(final.measurements) == 4
    assert {m["status"] for m in final.measurements.values()} == {"ok"}
    kept = [p for p, content in had.items() if json.loads(content)["status"] == "ok"]
    assert all(p.read_bytes() == had[p] for p in kept)


@pytest.mark.slow
def test_a_rebuilt_artifact_is_measured_again_when_resumed(tmp_path: Path, lab: Lab, two_devices: Started) -> None:
    out = make_out(tmp_path / "out", targets=["executorch"])
    first = lab("bench-android", "--serial", two_devices.serials[0], "--targets", "executorch", out=out)
    ((name, old),) = first.measurements.items()
    shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
    (tmp_path / "scratch").mkdir()
    put_artifact(out, make_record(tmp_path / "scratch"), "executorch", "fp32", extra=b"\0" * 16)
    again = lab("bench-android", "--serial", two_devices.serials[0], "--resume", out=out)
    new = again.measurements[name]
    assert len(again.measurements) == 1
    assert new["artifact"]["sha256"] != old["artifact"]["sha256"]


def test_a_serial_that_is_not_there(lab: Lab, two_devices: Started) -> None:
    run = lab("bench-android", "--serial", "no such; phone")
    assert run.code == 8
    assert "no device has serial 'no such; phone'" in run.stderr
    assert "adb connect" in run.stderr
