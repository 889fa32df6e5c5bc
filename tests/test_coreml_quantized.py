"""The Core ML target quantised: size, nearness, what stays float, and programs that are quantised already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build.errors import InputError, LoweringError
from targets import coreml
from tests.quantized_support import Quantized, images, quantized, quantized_program, small_program


def _weights(made: Quantized) -> int:
    """Bytes of the file that holds the weights."""
    return (made.folder / "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin").stat().st_size


@pytest.mark.parametrize(
    ("precision", "share", "least"), [("int8-weight", 0.35, 38), ("int8-static", 0.4, 30), ("int4-weight", 0.35, 16)]
)
def test_a_network_is_smaller_and_near(tmp_path: Path, precision: str, share: float, least: float) -> None:
    program = small_program(tmp_path)
    whole = quantized(coreml, program, tmp_path / "fp32", "fp32")
    made = quantized(coreml, program, tmp_path / "small", precision)
    assert made.runner.signature() == made.signature
    assert _weights(made) < share * _weights(whole)
    assert not made.lowered.unquantized
    for count in (1, 7, 16):
        assert made.snr([images(count)]) > least


@pytest.mark.parametrize("precision", ["int8-weight", "int8-static", "int4-weight"])
def test_two_lowerings_give_the_same_bytes(tmp_path: Path, precision: str) -> None:
    program = small_program(tmp_path)
    first = quantized(coreml, program, tmp_path / "a", precision).bytes()
    assert first == quantized(coreml, program, tmp_path / "b", precision).bytes()


@pytest.mark.parametrize("precision", ["int8-weight", "int8-static", "int4-weight"])
def test_a_kept_layer_stays_float(tmp_path: Path, precision: str) -> None:
    """The first linear layer holds most weights: kept, they are stored as floats, and its error is gone."""
    program = small_program(tmp_path)
    small = quantized(coreml, program, tmp_path / "small", precision)
    kept = quantized(coreml, program, tmp_path / "kept", precision, keep=("linear",))
    floats = 512 * 64
    assert _weights(kept) - _weights(small) > 2 * floats
    assert not kept.lowered.unquantized
    assert kept.runner.signature() == kept.signature
    assert kept.snr([images(16)]) > small.snr([images(16)])


def test_everything_kept_is_the_float_program(tmp_path: Path) -> None:
    names = ("conv2d", "conv2d_1", "conv2d_2", "linear", "linear_1", "batch_norm", "relu", "max_pool2d")
    made = quantized(coreml, small_program(tmp_path), tmp_path / "a", "int8-static", keep=names)
    assert made.snr([images(16)]) > 80
    assert not made.lowered.unquantized


@pytest.mark.parametrize("precision", ["int8-weight", "int8-static", "int4-weight"])
def test_a_name_that_is_no_node_is_an_error(tmp_path: Path, precision: str) -> None:
    with pytest.raises(InputError, match=r"lineer.*no such node"):
        quantized(coreml, small_program(tmp_path), tmp_path / "a", precision, keep=("lineer",))


@pytest.mark.parametrize("steps", [127, 63])
def test_a_program_that_is_quantised_already(tmp_path: Path, steps: int) -> None:
    """Its own integers and ranges are used: no more than a few rounding steps between PyTorch's result and ours."""
    program = small_program(tmp_path)
    own = quantized_program(program, tmp_path, weight_steps=steps)
    made = quantized(coreml, own, tmp_path / "own", "int8-static", calls=())
    whole = quantized(coreml, program, tmp_path / "fp32", "fp32")
    assert _weights(made) < 0.4 * _weights(whole)
    assert not made.lowered.unquantized
    for count in (1, 7, 16):
        (got,), (want,) = made.outputs([images(count)])
        step = float(np.diff(np.unique(want)).min())
        assert np.abs(got - want).max() <= 2.01 * step
        assert np.mean(np.abs(got - want) > 0.5 * step) < 0.25


def test_a_quantised_program_has_its_own_precision(tmp_path: Path) -> None:
    own = quantized_program(small_program(tmp_path), tmp_path)
    with pytest.raises(LoweringError, match="brings its own quantisation"):
        quantized(coreml, own, tmp_path / "a", "int8-weight")
    with pytest.raises(InputError, match=r"--keep-float linear.*own quantisation"):
        quantized(coreml, own, tmp_path / "b", "int8-static", keep=("linear",))


def test_four_bits_need_a_later_system(tmp_path: Path) -> None:
    program = small_program(tmp_path)
    four = quantized(coreml, program, tmp_path / "four", "int4-weight")
    assert four.lowered.contract["minimum_deployment_target"] == "iOS18"
    eight = quantized(coreml, program, tmp_path / "eight", "int8-weight")
    assert eight.lowered.contract["minimum_deployment_target"] == "iOS17"
    assert _weights(four) < 0.9 * _weights(eight)
