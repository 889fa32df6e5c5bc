"""What a reader of a measurement should know, as data with advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from device_bench.devices.base import Conditions
from device_bench.gate import Gate
from device_bench.statistics import Statistics

#: battery in percent below which phones begin to save power.
_LOW_BATTERY = 20.0
#: share of the cores that something else may keep busy.
_OTHER_LOAD = 0.5
#: warnings about times, which mean nothing on an emulated device anyway.
_OF_TIMES = ("throttled", "other-load", "timer", "governor", "no-sensor", "throughput-threads")
#: share of an inference that reading the clock may cost.
_TIMER_SHARE = 0.01
#: share of an inference that one step of the clock may be.
_STEP_SHARE = 0.05
#: clock after over clock before, below which the CPU was slowed.
THROTTLED_CLOCK = 0.8
#: median of the last quarter of the samples over that of the first, minus 1.
THROTTLED_DRIFT = 0.15


def throttled(result: Mapping[str, Any], statistics: Statistics) -> str | None:
    """How the device slowed down during the timed loop; None when it did not."""
    if statistics.drift > THROTTLED_DRIFT:
        return f"the last quarter of the samples is {statistics.drift:.0%} slower than the first"
    before = {c["id"]: c["khz"] for c in result["before"]["cpus"]}
    slowed = [c["id"] for c in result["after"]["cpus"] if c["khz"] < THROTTLED_CLOCK * before.get(c["id"], 0)]
    # Idle cores drop their clock at any time: only when the fastest of them fell too did the work run slower.
    if slowed and max(c["khz"] for c in result["after"]["cpus"]) < THROTTLED_CLOCK * max(before.values()):
        return f"the clock of CPU {', '.join(map(str, slowed))} fell by more than {1 - THROTTLED_CLOCK:.0%}"
    return None


def find_warnings(
    value: Mapping[str, Any], result: Mapping[str, Any], statistics: Statistics, before: Conditions, gate: Gate
) -> list[dict[str, str]]:
    """``[{"code", "message", "advice"}]``."""
    found: list[tuple[str, str, str]] = []
    if value["emulated"]:
        found.append(
            ("emulated", f"times mean nothing here: {value['device']['why_emulated']}", "Measure on a real device.")
        )
    slow = throttled(result, statistics)
    if slow is not None:
        found.append(("throttled", slow, "Let the device cool, or raise --cool-down."))
    if gate.timed_out:
        found.append(
            ("gate-timed-out", f"still {gate.celsius:.1f} °C after {gate.waited_seconds:g} s", "Raise --cool-down.")
        )
    odd = [g for g in before.governors if g != "performance"]
    if odd:
        found.append(
            (
                "governor",
                f"the CPU governor is {', '.join(odd)}",
                "Set it to performance where you may.",
            )
        )
    if before.battery_percent is not None and before.battery_percent < _LOW_BATTERY:
        found.append(("low-battery", f"battery at {before.battery_percent:g} %", "Charge it, then measure unplugged."))
    if before.charging:
        found.append(("charging", "the device was charging", "Measure unplugged, with adb over Wi-Fi."))
    cores = value["device"]["cores"]
    if before.load1 is not None and cores and before.load1 > _OTHER_LOAD * cores:
        found.append(
            (
                "other-load",
                f"load {before.load1:g} on {cores} cores before it",
                "End what else runs on the device.",
            )
        )
    if gate.celsius is None:
        found.append(("no-sensor", "the device shows no temperature", "Leave pauses of your own between runs."))
    wanted, busy = result["settings"]["threads"], result["threads"]["busy"]
    if busy is not None and busy != wanted:
        found.append(
            ("threads", f"{busy} threads did the work, {wanted} were asked for", "The model may be too small for more.")
        )
    told, usable = result["threads"]["runtime"], len(result["settings"]["affinity"]) or cores
    # Throughput is a figure of the whole machine only where all of it computes, and the default is one thread.
    if value["measurement"]["variant"] == "throughput" and told is not None and usable and told < usable:
        few = f"this is the throughput of {told} of {usable} cores"
        found.append(("throughput-threads", few, f"Add --threads {usable} for that of all."))
    if result["timer_cost_ns"] * 2 > _TIMER_SHARE * statistics.p50_ms * 1e6:
        found.append(("timer", "reading the clock is more than 1 % of an inference", "Measure a larger --batch."))
    step = result.get("timer_step_ns") or 0
    if step > _STEP_SHARE * statistics.p50_ms * 1e6:
        coarse = f"the clock's step of {step / 1000:g} µs is more than {_STEP_SHARE:.0%} of an inference"
        found.append(("timer", coarse, "Measure a larger --batch."))
    skipped = _OF_TIMES if value["emulated"] else ()
    return [{"code": c, "message": m, "advice": a} for c, m, a in found if c not in skipped]
