"""What comes back from a device is checked before it is believed; figures from samples; verdicts."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.errors import RejectedResultError
from device_bench import harness_result, lookup, measurement, runs
from device_bench.advice import find_warnings
from device_bench.devices.base import Conditions
from device_bench.gate import Gate
from device_bench.statistics import nearest_rank, summarise
from device_bench.verdict import Rules, judge

JOB = {
    "id": "a" * 32,
    "artifact_sha256": "b" * 64,
    "outputs": ["y"],
    "calls": [{"id": "one"}, {"id": "two"}],
}
_CONDITIONS: dict[str, Any] = {"load1": None, "cpus": [], "thermal": []}


def result(**changes: Any) -> dict[str, Any]:
    """A harness's result that is right, but for the changes."""
    settings = {"threads": 1, "affinity": [], "warmup_runs": 5, "warmup_seconds": 0.5}
    settings |= {"min_runs": 50, "min_seconds": 1.0, "max_runs": 100, "max_seconds": 60.0}
    value: dict[str, Any] = {
        "schema_version": 1,
        "job": JOB["id"],
        "artifact_sha256": JOB["artifact_sha256"],
        "harness": "test",
        "status": "ok",
        "error": None,
        "settings": settings,
        "timed_call": "timed",
        "clock": "steady",
        "timer_cost_ns": 30,
        "cpu": {"arch": "x", "kernel": "y", "online": 1, "affinity": [0], "models": [], "parts": [], "features": []},
        "runtime": {"name": "litert", "version": "2.3.0"},
        "before": _CONDITIONS,
        "after": _CONDITIONS,
        "load_ns": 1,
        "first_ns": 1,
        "warmup": {"runs": 5, "ns": 5},
        "samples_ns": [1_000_000, 2_000_000],
        "loop_ns": 3_000_000,
        "memory": dict.fromkeys(
            ("rss_before_load", "rss_after_load", "peak_rss", "peak_rss_end", "samples_bytes"), 2**20
        ),
        "threads": {"alive": 1, "busy": 1, "runtime": None},
        "end": harness_result.END_MARKER,
    }
    return {k: v for k, v in (value | changes).items() if v is not ...}


def parse(value: Any) -> dict[str, Any]:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return harness_result.parse(content, JOB)


def test_a_right_result_is_taken() -> None:
    assert parse(result())["samples_ns"] == [1_000_000, 2_000_000]
    failed = result(status="failed", error={"stage": "load", "message": "no"}, samples_ns=..., after=..., load_ns=...)
    assert parse(failed)["error"]["stage"] == "load"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (result(end=...), "no end-of-run marker"),
        (result(end="something"), "no end-of-run marker"),
        (result(load_ns=math.nan), "NaN is not a number"),
        (result(first_ns=math.inf), "Infinity is not a number"),
        (result(artifact_sha256="c" * 64), "another artifact_sha256"),
        (result(job="d" * 32), "another job"),
        (result(schema_version=2), "schema version 2"),
        (result(schema_version=...), "schema version None"),
        (result(samples_ns=[]), "samples_ns"),
        (result(samples_ns=[-1]), "samples_ns/0"),
        (result(samples_ns=[1.5]), "samples_ns/0"),
        (result(samples_ns=...), "samples_ns"),
        (result(extra=1), "extra"),
        (result(status="failed"), "error"),
        (json.dumps(result()).encode()[:-20], "not whole JSON"),
        (b"", "not whole JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"\xff\xfe\x00garbage", "not text"),
        (b"[" * 100_000, "nested too deeply|not whole JSON"),
        (b"{" + b"x" * (harness_result.MAX_BYTES + 1), "more than the"),
    ],
)
def test_what_is_not_a_result_is_rejected_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(RejectedResultError, match=reason):
        parse(value)


def test_a_hundred_megabytes_of_noise_are_rejected() -> None:
    with pytest.raises(RejectedResultError, match="104857600 bytes"):
        parse(os.urandom(1024) * 102_400)


@given(st.binary(max_size=400))
def test_no_bytes_make_the_reader_fail_otherwise(content: bytes) -> None:
    with pytest.raises(RejectedResultError):
        parse(content)


def test_the_end_is_the_last_line_of_this_job() -> None:
    marker = f"{harness_result.END_MARKER} {JOB['id']}"
    assert harness_result.ended(f"noise\n{marker}\n", str(JOB["id"]))
    assert not harness_result.ended(f"{marker}\nmore", str(JOB["id"]))
    assert not harness_result.ended(f"{harness_result.END_MARKER} {'0' * 32}", str(JOB["id"]))
    assert not harness_result.ended("", str(JOB["id"]))


def test_outputs_are_those_of_the_job(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    one = np.ones(3, np.float32)
    file = tmp_path / "outputs.safetensors"
    save_file({"one/out/y": one, "two/out/y": one}, file)
    assert set(harness_result.read_outputs(file, JOB)) == {"one", "two"}
    for tensors in ({"one/out/y": one}, {"one/out/y": one, "two/out/y": one, "three/out/y": one}):
        save_file(tensors, file)
        with pytest.raises(RejectedResultError, match="not those of the job"):
            harness_result.read_outputs(file, JOB)
    file.write_bytes(b"\x10" + b"\0" * 7 + b"not a header")
    with pytest.raises(RejectedResultError, match="cannot be read"):
        harness_result.read_outputs(file, JOB)


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=400))
def test_percentiles_are_values_that_were_measured(samples: list[int]) -> None:
    found = summarise(samples)
    ordered = sorted(samples)
    for percent in (50, 90, 95):
        value = nearest_rank(ordered, percent)
        assert value in samples
        assert sum(s <= value for s in samples) * 100 >= percent * len(samples)
        assert sum(s < value for s in samples) * 100 < percent * len(samples)
    assert found.p99_ms is None
    assert found.min_ms <= found.p50_ms <= found.p90_ms <= found.p95_ms <= found.max_ms


def test_known_figures() -> None:
    found = summarise(list(range(1_000_000, 101_000_000, 1_000_000)))
    assert (found.p50_ms, found.p90_ms, found.p95_ms, found.max_ms) == (50.0, 90.0, 95.0, 100.0)
    assert found.mean_ms == 50.5
    assert found.p99_ms is None
    assert summarise([1_000_000] * 999 + [9_000_000]).p99_ms == 1.0
    assert found.drift > 1


def measured(repeat: int = 1, p95: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A measurement with 200 samples, but for the changes."""
    samples = [round(p95 * 1e6)] * 200
    gate = {"celsius": 30.0, "sensor": "battery", "limit": 38.0, "waited_seconds": 0.0, "timed_out": False}
    value: dict[str, Any] = {
        "status": "ok",
        "emulated": False,
        "device": {"why_emulated": None},
        "measurement": {"repeat": repeat},
        "statistics": summarise(samples).to_json(),
        "samples_ns": samples,
        "memory": {"peak_mb": 10.0},
        "host": None,
        "conditions": {
            "gate": gate,
            "before": {"charging": False},
            "harness_before": _CONDITIONS,
            "harness_after": _CONDITIONS,
        },
    }
    return value | changes


def condition(**changes: Any) -> dict[str, Any]:
    return {"conditions": measured()["conditions"] | changes}


CPUS: dict[str, Any] = {"load1": None, "thermal": []}
FAST, SLOW = ({**CPUS, "cpus": [{"id": 0, "khz": khz}]} for khz in (2_000_000, 1_000_000))
DRIFT = {"samples_ns": [1_000_000] * 100 + [1_500_000] * 100}
DIFFERS = {"host": {"why": ["call 'one': output 'y' is beyond the tolerance"]}}
FAILED = {"status": "failed", "error": {"message": "the connection broke"}}
GATE = {"celsius": 45.0, "limit": 38.0, "timed_out": True}


@pytest.mark.parametrize(
    ("repeats", "limits", "word", "reason"),
    [
        ([{}, {}, {}], {"p95_ms": 1.0}, "PASS", ""),
        ([{}, {}, {}], {"p95_ms": 0.9}, "FAIL", "p95 is 1.000 ms, the budget is 0.9"),
        ([{}, {}, {}], {"peak_mb": 9.0}, "FAIL", "peak memory is 10.0 MiB"),
        ([{}, {}, {}], {}, None, ""),
        ([{}, {}, DIFFERS], {"p95_ms": 9.0}, "FAIL", "differ from this host's"),
        ([{}, {}], {"p95_ms": 9.0}, "INCONCLUSIVE", "2 of 3 repeats"),
        ([{}, {}, FAILED], {"p95_ms": 9.0}, "INCONCLUSIVE", "the connection broke"),
        ([], {"p95_ms": 9.0}, "INCONCLUSIVE", "0 of 3 repeats"),
        ([{}, {}, {"p95": 1.3}], {"p95_ms": 9.0}, "INCONCLUSIVE", "differ by 30%"),
        ([{}, {}, {"p95": 1.3}], {"p95_ms": 1.1}, "INCONCLUSIVE", "differ by 30%"),
        ([{}, {}, {"p95": 1.3}], {"peak_mb": 11.0}, "PASS", ""),
        ([{}, {}, DRIFT], {"p95_ms": 9.0}, "INCONCLUSIVE", "throttled in repeat 3"),
        ([{}, {}, condition(harness_before=FAST, harness_after=SLOW)], {"p95_ms": 9.0}, "INCONCLUSIVE", "the clock"),
        ([{}, {}, condition(gate=GATE)], {"p95_ms": 9.0}, "INCONCLUSIVE", "gate timed out at 45.0"),
        ([{}, {}, condition(before={"charging": True})], {"p95_ms": 9.0}, "INCONCLUSIVE", "charging"),
        ([{"emulated": True}] * 3, {"p95_ms": 9.0}, "INCONCLUSIVE", "emulated"),
        ([{"emulated": True}] * 3, {"p95_ms": 0.1}, "INCONCLUSIVE", "emulated"),
        ([{"emulated": True}] * 3, {"peak_mb": 99.0}, "INCONCLUSIVE", "emulated"),
        ([{"emulated": True}] * 3, {"peak_mb": 0.1}, "INCONCLUSIVE", "emulated"),
    ],
)
def test_verdicts(repeats: list[dict[str, Any]], limits: dict[str, Any], word: str | None, reason: str) -> None:
    found = judge([measured(i + 1, **r) for i, r in enumerate(repeats)], repeats=3, **limits)
    assert found.word == word
    assert reason in " ".join(found.reasons)
    assert bool(found.reasons) is (word in ("FAIL", "INCONCLUSIVE"))


def test_too_few_samples_for_the_percentile() -> None:
    few: dict[str, Any] = {"samples_ns": [1_000_000] * 20, "statistics": summarise([1_000_000] * 20).to_json()}
    found = judge([measured(i, **few) for i in (1, 2, 3)], repeats=3, p95_ms=9.0)
    assert found.word == "INCONCLUSIVE"
    assert "60 samples are too few for a p95, which needs 100" in found.reasons


@pytest.mark.parametrize("tails", [(0.0, 0.0, 0.0), (0.0, 0.0, 1.0), (1.0, 1.0, 0.0)])
def test_a_p95_below_the_clocks_step_is_no_p95(tails: tuple[float, ...]) -> None:
    repeats = [measured(i + 1, p95) for i, p95 in enumerate(tails)]
    found = judge(repeats, repeats=3, p95_ms=9.0)
    assert (found.word, found.reasons[-1]) == ("INCONCLUSIVE", "a p95 of 0 ms is below the clock's step")
    assert judge(repeats, repeats=3).reasons  # so it is no evidence either


def test_a_charging_device_may_count_when_the_user_says_so() -> None:
    charging = condition(before={"charging": True})
    repeats = [measured(i, **charging) for i in (1, 2, 3)]
    assert judge(repeats, repeats=3, p95_ms=9.0, rules=Rules(allow_charging=True)).word == "PASS"


def test_a_damaged_measurement_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    for content, reason in (
        ('{"schema_version": 1}', "no end marker"),
        ('{"schema_version": 9}', "schema version 9"),
        ('{"schema_version": 1, "x": NaN}', "NaN"),
        ('{"schema_version": 1, "end": "edgeport-measurement"}', "schema"),
        ("[", "not whole JSON"),
    ):
        path.write_text(content)
        with pytest.raises(RejectedResultError, match=reason):
            measurement.read(path)


def warned(variant: str, runtime: int | None, cores: int, affinity: tuple[int, ...] = ()) -> list[str]:
    value = {"emulated": False, "device": {"cores": cores}, "measurement": {"variant": variant}}
    told = result(threads={"alive": 9, "busy": None, "runtime": runtime})
    told["settings"] |= {"affinity": list(affinity)}
    gate = Gate(celsius=30.0, sensor="battery", limit=38.0, waited_seconds=0.0, timed_out=False)
    found = find_warnings(value, told, summarise(told["samples_ns"]), Conditions(celsius=30.0, sensor="battery"), gate)
    return [f"{w['message']}. {w['advice']}" for w in found if w["code"] == "throughput-threads"]


def test_throughput_on_a_part_of_the_cpu_says_so() -> None:
    assert warned("throughput", 1, 8) == ["this is the throughput of 1 of 8 cores. Add --threads 8 for that of all."]
    assert warned("throughput", 1, 8, affinity=(2, 3)) != warned("throughput", 1, 8) != []
    for quiet in (warned("throughput", 8, 8), warned("throughput", 2, 8, (2, 3)), warned("latency", 1, 8)):
        assert quiet == []
    assert warned("throughput", None, 8) == []  # a GPU: its runtime tells of no threads


def test_the_newest_figures_that_count_are_found(tmp_path: Path) -> None:
    def row(p95: float, **changes: Any) -> dict[str, Any]:
        value = {"artifact_sha256": "a", "platform": "android", "device_class": "low-end", "counts": True}
        return value | {"emulated": False, "verdict": {"p95_ms": p95, "peak_mb": 2 * p95}} | changes

    def write(name: str, *rows: dict[str, Any]) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"schema_version": 1, "rows": rows}))

    def find(**changes: str) -> Any:
        return lookup.newest_figures(tmp_path, **({"artifact_sha256": "a", "platform": "android"} | changes))

    assert find() is None
    write("run-20260101-000000-x", row(1.0), row(2.0))
    write("run-20260102-000000-x", row(9.0, emulated=True), row(8.0, counts=False), row(7.0, platform="web"))
    (tmp_path / "run-20260103-000000-x").mkdir()
    (tmp_path / "run-20260103-000000-x" / "summary.json").write_text("{")
    assert find() == {"p95_ms": 2.0, "peak_mb": 4.0}
    assert find(device_class="low-end") == {"p95_ms": 2.0, "peak_mb": 4.0}
    assert find(device_class="high-end") is None
    assert find(artifact_sha256="b") is None


def test_schemas_are_schemas() -> None:
    folder = Path(measurement.SCHEMA).parent
    found = sorted(folder.glob("*.schema.json"))
    assert len(found) == 3
    for path in found:
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
    assert runs.SCHEMA_VERSION == 1
