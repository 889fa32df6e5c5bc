"""Quantised precisions, what is alike on three targets: names of nodes, and programs that are quantised already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build.errors import InputError, LoweringError
from targets.precisions import PRECISIONS
from targets.registry import all_targets, load
from tests.quantized_support import Quantized, images, quantized, quantized_program, small_program

TARGETS = ("openvino", "ort_web", "coreml")
CELLS = [
    (t, p.name)
    for t in TARGETS
    for p in PRECISIONS.values()
    if p.quantized and not all_targets()[t].unavailable(p.name)
]
#: where a target keeps its weights: the rest of an artifact is a description that does not shrink
WEIGHTS = {"openvino": "*.bin", "ort_web": "*.onnx", "coreml": "weight.bin"}


def _weights(target: str, made: Quantized) -> int:
    return sum(f.stat().st_size for f in made.folder.rglob(WEIGHTS[target]))


@pytest.mark.parametrize(("target", "precision"), CELLS, ids=["-".join(c) for c in CELLS])
def test_a_name_that_is_no_node_is_an_error(tmp_path: Path, target: str, precision: str) -> None:
    module = load(all_targets()[target])
    with pytest.raises(InputError, match=r"lineer.*no such node"):
        quantized(module, small_program(tmp_path), tmp_path / "a", precision, keep=("lineer",))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("steps", [127, 63])
def test_a_program_that_is_quantised_already(tmp_path: Path, target: str, steps: int) -> None:
    """Its own integers and ranges are used: no more than a few rounding steps between PyTorch's result and ours."""
    module, program = load(all_targets()[target]), small_program(tmp_path)
    own = quantized_program(program, tmp_path, weight_steps=steps)
    made = quantized(module, own, tmp_path / "own", "int8-static", calls=())
    whole = quantized(module, program, tmp_path / "fp32", "fp32")
    assert 0 < _weights(target, made) < 0.4 * _weights(target, whole)
    assert not made.lowered.unquantized
    for count in (1, 7, 16):
        (got,), (want,) = made.outputs([images(count)])
        step = float(np.diff(np.unique(want)).min())
        assert np.abs(got - want).max() <= 2.01 * step
        assert np.mean(np.abs(got - want) > 0.5 * step) < 0.25


@pytest.mark.parametrize("target", TARGETS)
def test_a_quantised_program_has_its_own_precision(tmp_path: Path, target: str) -> None:
    module, own = load(all_targets()[target]), quantized_program(small_program(tmp_path), tmp_path)
    with pytest.raises(LoweringError, match="brings its own quantisation"):
        quantized(module, own, tmp_path / "a", "int8-weight")
    with pytest.raises(InputError, match=r"--keep-float linear.*own quantisation"):
        quantized(module, own, tmp_path / "b", "int8-static", keep=("linear",))
