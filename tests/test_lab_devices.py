"""What devices say of themselves and how it is read; the temperature gate; options; faults; names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build.errors import DeviceError, InputError
from device_bench import options as cli
from device_bench import runs
from device_bench.artifacts import ENGINES
from device_bench.devices.base import Conditions, safe_name
from device_bench.devices.survey import read_conditions, read_facts
from device_bench.emulator import faults
from device_bench.gate import pass_gate
from device_bench.harness.build import TOOLCHAINS
from device_bench.platforms import EVIDENCE, SESSIONS, load, speaks_for
from targets.registry import all_targets, platforms

PHONE = """machine=aarch64
kernel=6.1
ro.product.manufacturer=Google
ro.product.model=Pixel 8
ro.soc.model=Tensor G3
ro.build.version.release=15
ro.build.version.sdk=35
ro.product.cpu.abi=arm64-v8a
ro.hardware=shiba
cores=9
memory_kb=7654321 kB
"""


def test_a_phone() -> None:
    found = read_facts("adb", "S1", PHONE)
    assert (found.arch, found.model, found.soc, found.os) == (
        "aarch64",
        "Pixel 8",
        "Tensor G3",
        "Android 15 (API 35)",
    )
    assert (found.cores, found.memory_mb, found.emulated) == (9, 7474, False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("ro.kernel.qemu=1", "Android's emulator"),
        ("ro.boot.qemu=1", "Android's emulator"),
        ("ro.edgeport.emulated=1", "Edgeport's emulated device"),
    ],
)
def test_an_emulator_is_known_as_one(change: str, why: str) -> None:
    found = read_facts("adb", "S1", PHONE + change)
    assert found.emulated
    assert why in (found.why_emulated or "")


def test_arm_programs_on_another_kernel_are_emulated() -> None:
    found = read_facts("adb", "S1", PHONE.replace("machine=aarch64", "machine=x86_64"))
    assert found.why_emulated == "aarch64 programs on a x86_64 kernel"
    assert read_facts("adb", "S1", PHONE.replace("=shiba", "=ranchu")).emulated


def test_a_board_and_a_device_that_the_harness_is_not_built_for() -> None:
    board = read_facts("ssh", "pi", "machine=aarch64\nos=Debian GNU/Linux 12\nboard=Raspberry Pi 5\ncores=4\n")
    assert (board.arch, board.model, board.os, board.emulated) == (
        "aarch64",
        "Raspberry Pi 5",
        "Debian GNU/Linux 12",
        False,
    )
    with pytest.raises(DeviceError, match=r"not built for this device.*armeabi-v7a"):
        read_facts("adb", "S", PHONE.replace("arm64-v8a", "armeabi-v7a"))
    with pytest.raises(DeviceError, match="riscv64"):
        read_facts("ssh", "h", "machine=riscv64\n")


def test_conditions_of_a_phone() -> None:
    found = read_conditions(
        "load=1.5 1.0 0.5 1/100 4\nkhz.cpu0=1800000\ngovernor.cpu0=schedutil\nzone.cpu-0=61000\nzone.bad=999999\n"
        "dumpsys.AC powered=false\ndumpsys.USB powered=true\ndumpsys.level=80\ndumpsys.temperature=312\n"
    )
    assert (found.celsius, found.sensor) == (31.2, "battery")
    assert (found.battery_percent, found.charging, found.load1) == (80.0, True, 1.5)
    assert (found.governors, found.khz) == (("schedutil",), {"cpu0": 1800000})


def test_the_hottest_cpu_zone_where_there_is_no_battery() -> None:
    text = "zone.cpu-thermal=48000\nzone.cpu-thermal=52500\nzone.wifi=70000\nzone.soc=-273000\n"
    found = read_conditions(text)
    assert (found.celsius, found.sensor) == (52.5, "cpu-thermal")
    assert read_conditions("zone.wifi=41\n").celsius == 41
    assert read_conditions("").celsius is None
    assert read_conditions("battery.status=Charging\nbattery.level=55\n").charging is True


class Cooling:
    """A device whose readings are given, and a clock that only sleeping moves."""

    name = "cooling"

    def __init__(self, *readings: float | None) -> None:
        self.readings = list(readings)
        self.now = 0.0

    def conditions(self) -> Conditions:
        value = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return Conditions(celsius=value, sensor=None if value is None else "battery")

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def gate(device: Any, **options: Any) -> Any:
    found, _ = pass_gate(device, sleep=device.sleep, clock=lambda: device.now, poll=5.0, **options)
    return found


def test_the_gate_waits_until_it_is_cool() -> None:
    found = gate(Cooling(45.0, 41.0, 37.9), limit=None, max_seconds=300)
    assert (found.celsius, found.limit, found.waited_seconds, found.timed_out) == (37.9, 38.0, 10.0, False)


def test_the_gate_waits_no_longer_than_allowed() -> None:
    device = Cooling(45.0)
    found = gate(device, limit=40, max_seconds=12)
    assert (found.celsius, found.limit, found.timed_out) == (45.0, 40, True)
    assert device.now == 12


def test_a_gate_without_a_sensor_is_open() -> None:
    found = gate(Cooling(None), limit=40, max_seconds=12)
    assert (found.celsius, found.timed_out, found.waited_seconds) == (None, False, 0)


def test_names_are_fit_for_files_and_stay_apart() -> None:
    assert safe_name("adb-R58M123") == "adb-R58M123"
    odd = ["a/b", "a b", "a;b", "../../etc", "$(x)", "ä", "", "."]
    names = [safe_name(o) for o in odd]
    assert len(set(names)) == len(odd)
    assert all(n and "/" not in n and " " not in n and not n.startswith(".") for n in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats 0"),
        (["--precisions", "int8"], "no precision is named 'int8'"),
        (["--targets", "coreml"], "no target is named 'coreml'"),
        (["--min-seconds", "nan"], "--min-seconds nan"),
        (["--affinity", "0,x"], "--affinity 0,x"),
        (["--max-seconds", "0"], "need more than 0"),
        (["--batch", "0"], "--batch 0"),
        (["--threads", "4294967297"], "at most 1024"),
        (["--sweep", "threads=1,4294967297"], "at most 1024"),
        (["--seed", "-1"], "--seed -1"),
        (["--max-celsius", "nan"], "--max-celsius nan"),
        (["--min-seconds", "100", "--max-seconds", "1"], "is more than --max-seconds"),
        (["--keep-p95", "5"], "a sweep over batches"),
        (["--emulated", "-1"], "--emulated"),
        (["--budgets", "no-such-file"], "no such file"),
        (["--json", "docs"], "this is a folder"),
        (["--json", ""], "this is a folder"),
        (["--json", "README.md/x.json"], "is a file, not a folder"),
        (["--serail", "x"], "unrecognized arguments"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cli.parse("bench-android", arguments)


def test_a_gpu_in_a_browser_has_no_threads_to_choose() -> None:
    web = load("bench-web")
    web.check(cli.parse("bench-web", ["--variants", "wasm", "--threads", "2"]))
    web.check(cli.parse("bench-web", ["--variants", "all"]))
    for arguments in (["--threads", "2"], ["--sweep", "threads=1,2"]):
        with pytest.raises(InputError, match="on webgpu they would change nothing"):
            web.check(cli.parse("bench-web", ["--variants", "all", *arguments]))


def test_options() -> None:
    found = cli.parse("bench-android", ["--serial", "A", "--serial", "B", "--precisions", "all", "--threads", "4"])
    assert found.serials == ("A", "B")
    assert "int8-static" in found.precisions
    assert found.settings.threads == 4
    assert set(ENGINES) <= set(all_targets())


@pytest.mark.parametrize(
    "other",
    [
        ["--model", "minilm"],
        ["--repeats", "7"],
        ["--sweep", "batch=1,2"],
        ["--min-runs", "9"],
        ["--seed", "9"],
        ["--max-spread", "0.5"],
        ["--allow-charging"],
    ],
)
def test_a_run_is_not_resumed_with_other_options(tmp_path: Path, other: list[str]) -> None:
    runs.start(cli.parse("bench-local", ["--results", str(tmp_path), "--repeats", "5", "--seed", "1"]))
    with pytest.raises(InputError, match=f"{other[0]}|length of runs"):
        runs.resume(cli.parse("bench-local", ["--results", str(tmp_path), "--resume", *other]))


def test_a_run_is_resumed_with_its_own_options(tmp_path: Path) -> None:
    own = ["--repeats", "5", "--threads", "2", "--max-spread", "0.3"]
    first = cli.parse("bench-local", ["--results", str(tmp_path), *own])
    folder, started = runs.start(first)
    assert started.seed is not None
    assert runs.note_devices(folder, ["b"]) == ["b"]
    assert runs.note_devices(folder, ["a"]) == ["a", "b"]
    again, options = runs.resume(cli.parse("bench-local", ["--results", str(tmp_path), "--resume"]))
    assert again == folder
    assert (options.seed, options.repeats, options.settings) == (started.seed, 5, first.settings)
    assert options.rules == first.rules
    with pytest.raises(InputError, match="no run of bench-android to resume"):
        runs.resume(cli.parse("bench-android", ["--results", str(tmp_path), "--resume"]))


def test_faults_are_read_and_used_up(tmp_path: Path) -> None:
    assert faults.parse("2=crash") == (2, faults.Fault(kind="crash"))
    assert faults.parse("1=hang*3")[1].times == 3
    assert faults.parse("1=hang*")[1].times == faults.ALWAYS
    for bad in ("crash", "x=crash", "1=explode", "1=crash*x"):
        with pytest.raises(InputError, match="is no fault"):
            faults.parse(bad)
    device = faults.Faults(tmp_path)
    assert device.take("crash") is None
    faults.put(tmp_path, faults.Fault(kind="crash", times=2))
    assert device.take("hang") is None
    assert device.take("crash", "hang") is not None
    assert device.take("crash") is not None
    assert device.take("crash") is None


def test_every_architecture_has_a_toolchain_file_or_is_the_hosts() -> None:
    for name, toolchain in TOOLCHAINS.items():
        for word in toolchain.cmake:
            assert Path(word.split("=", 1)[1]).is_file(), name


def test_every_platform_has_places_whose_measurements_speak_for_it() -> None:
    assert set(EVIDENCE) == set(platforms())
    measured = {load(session).PLATFORM for session in SESSIONS}
    assert set(platforms()) <= measured
    assert speaks_for({"kind": "local", "arch": "aarch64"}, "linux-arm64")
    assert not speaks_for({"kind": "local", "arch": "x86_64"}, "linux-arm64")
    assert not speaks_for({"kind": "adb", "arch": "aarch64"}, "web")
