"""The parts of the Python harness, without a runtime: its loop, and what it believes of an engine."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_bench import harness_result
from device_bench.harness.python import __main__ as process
from device_bench.harness.python import measure as timing
from device_bench.harness.python import system
from device_bench.harness.python.engine import Failure, Plan
from device_bench.harness.python.job import Job, Tensors
from device_bench.job import OUTPUTS_ONLY
from tests.device.built import SIGNATURE


def job_in(folder: Path, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": "1" * 32,
        "artifact": folder / "model.xml",
        "artifact_sha256": "0" * 64,
        "tensors": folder / "tensors",
        "signature": SIGNATURE,
        "timed": "timed",
        "calls": (),
        "settings": OUTPUTS_ONLY.for_harness(),
        "options": {},
        "result_file": folder / "result.json",
        "outputs_file": folder / "outputs",
    }
    return Job(**fields | changes)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((65, 1, 8, 8), np.float32), r"dimension 0 .* is 65, outside the program's range 1\.\.64"),
        (np.zeros((1, 1, 8, 9), np.float32), "dimension 3"),
        (np.zeros((1, 8, 8), np.float32), "dimensions"),
        (np.zeros((1, 1, 8, 8), np.float64), "float64"),
    ],
    ids=["bound", "size", "rank", "dtype"],
)
def test_inputs_outside_the_programs_bounds_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    from safetensors.numpy import save_file

    save_file({"timed/in/image": value}, tmp_path / "tensors")
    with pytest.raises(Failure, match=message) as caught:
        Tensors(job_in(tmp_path, tensors=tmp_path / "tensors")).of("timed")
    assert caught.value.stage == "tensors"


class Scripted:
    """An engine whose runs are given: each is the output that it writes, or None: it writes nothing."""

    runtime = "scripted"

    def __init__(self, *runs: Any) -> None:
        self._runs = list(runs)
        self._value = np.zeros((1, 10), np.float32)

    def run(self) -> None:
        value = self._runs.pop(0)
        if value is not None:
            self._value = np.array(value)

    def spoil(self, pattern: int) -> None:
        self._value.reshape(-1).view(np.uint8)[:] = pattern

    def outputs(self) -> list[Mapping[str, Any]]:
        return [{"logits": self._value.copy()}]


def test_a_run_that_writes_nothing_is_seen(tmp_path: Path) -> None:
    engine: Any = Scripted(None, None)
    with pytest.raises(Failure, match="did not write output 'logits'") as caught:
        timing.fresh_run(job_in(tmp_path), engine, {"s40": 1})
    assert caught.value.stage == "run"


def test_an_output_that_happens_to_be_the_pattern_is_believed(tmp_path: Path) -> None:
    pattern = np.frombuffer(bytes([0xA5]) * 40, np.float32).reshape(1, 10)
    engine: Any = Scripted(pattern, pattern)
    found = timing.fresh_run(job_in(tmp_path), engine, {"s40": 1})
    np.testing.assert_array_equal(found["logits"], pattern)


@pytest.mark.parametrize("shape", [(0, 10), (2, 10), (1, 9)], ids=["empty", "of another call", "size"])
def test_an_output_of_another_shape_is_seen(tmp_path: Path, shape: tuple[int, ...]) -> None:
    engine: Any = Scripted(np.zeros(shape, np.float32))
    with pytest.raises(Failure, match="logits"):
        timing.fresh_run(job_in(tmp_path), engine, {"s40": 1})


def plan(room: int, **changes: int) -> Plan:
    how = {"min_runs": 1, "min_ns": 0, "max_runs": 10**6, "max_ns": 10**12} | changes
    return Plan(samples=array("q", bytes(8 * room)), **how)


def test_the_plain_loop() -> None:
    calls: list[int] = []
    done = timing.sequential(lambda: calls.append(1), plan(100, min_runs=30))
    assert done.runs == len(calls) == 30
    one = plan(100, min_runs=5, min_ns=10**12, max_runs=100)
    assert timing.sequential(lambda: None, one).runs == 100
    small = plan(2, min_runs=9)  # the warm-up was slower than the loop: its room is no end
    assert timing.sequential(lambda: None, small).runs == 9
    assert all(ns > 0 for ns in small.samples[:9])
    slept = plan(100, min_runs=50, max_ns=1)
    assert timing.sequential(lambda: time.sleep(0.001), slept).runs == 1
    noted: list[int] = []
    timed = plan(10, min_runs=10)
    loop = timing.sequential(lambda: None, timed, noted.append)
    assert noted == list(range(10))
    assert sum(timed.samples) <= loop.ns


def test_busy_threads_are_those_that_did_a_share_of_the_work() -> None:
    before = {1: 1_000, 2: 5_000_000, 3: 0}
    after = {1: 100_001_000, 2: 55_000_000, 3: 1_000_000, 4: 90_000_000}
    assert system.busy_threads(before, after) == 3
    assert system.busy_threads({1: 0}, {1: 1_000_000}) is None
    assert system.busy_threads({}, {}) is None


def test_the_harness_and_the_lab_agree_on_the_marker_and_the_version() -> None:
    assert harness_result.END_MARKER == process.END_MARKER
    assert harness_result.SCHEMA_VERSION == process.SCHEMA_VERSION
