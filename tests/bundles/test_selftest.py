"""The tolerances of a self-test: the receiver's rule knows the largest value of an output, whatever that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from build.bundle.selftest import Reference, _outlying, tolerances
from build.record import REFERENCE, CallRecord, ProgramRecord
from build.verify.compare import DEFAULT_TOLERANCES
from targets.contract import Signature, TensorSpec


def reference(folder: Path, values: Any) -> Reference:
    """Of a program with one output, called once."""
    save_file({"e/out/y": values}, folder / REFERENCE)
    record = ProgramRecord(
        name="net",
        key="k",
        sha256="a" * 64,
        signature=Signature(inputs=(), outputs=(TensorSpec(name="y", dtype="float32", shape=values.shape),)),
        calls=(CallRecord(id="e", kind="example"),),
        files={},
        source={},
    )
    return Reference(folder, record)


@pytest.mark.parametrize("fill", [None, -1e9])
def test_a_masks_fill_lends_no_score_its_tolerance(tmp_path: Path, fill: float | None) -> None:
    values = np.random.default_rng(1).normal(size=(4, 50)).astype(np.float32)
    if fill is not None:
        values[:, ::2] = fill
    made = reference(tmp_path, values)
    limit = tolerances(made.record, {"precision": "fp32"}, _outlying(made, made.record.calls))["y"]
    allowed = limit["atol"] + limit["rtol"] * np.abs(values) + limit["scale"] * np.abs(values).max()
    ordinary = DEFAULT_TOLERANCES["fp32"]
    scores = values if fill is None else values[:, 1::2]
    assert allowed[np.isin(values, scores)].max() < 0.01
    assert np.all(allowed >= ordinary.atol + ordinary.rtol * np.abs(values))
    assert (limit["scale"] == ordinary.scale) == (fill is None)


def test_whole_numbers_have_no_outliers(tmp_path: Path) -> None:
    made = reference(tmp_path, np.array([[1, 10**9]], np.int64))
    assert _outlying(made, made.record.calls) == {}
