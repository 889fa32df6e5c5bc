"""The Core ML target quantised: size, nearness, what stays float, and programs that are quantised already."""

from __future__ import annotations

from pathlib import Path

import pytest

from targets import coreml
from tests.quantized_support import Quantized, images, quantized, small_program


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


@pytest.mark.parametrize(
    "precision",
    ["int8-static", *(pytest.param(p, marks=pytest.mark.slow) for p in ("int8-weight", "int4-weight"))],
)
def test_two_lowerings_give_the_same_bytes(tmp_path: Path, precision: str) -> None:
    program = small_program(tmp_path)
    first = quantized(coreml, program, tmp_path / "a", precision).bytes()
    assert first == quantized(coreml, program, tmp_path / "b", precision).bytes()


@pytest.mark.parametrize(
    "precision",
    ["int8-static", *(pytest.param(p, marks=pytest.mark.slow) for p in ("int8-weight", "int4-weight"))],
)
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


def test_four_bits_need_a_later_system(tmp_path: Path) -> None:
    program = small_program(tmp_path)
    four = quantized(coreml, program, tmp_path / "four", "int4-weight")
    assert four.lowered.contract["minimum_deployment_target"] == "iOS18"
    eight = quantized(coreml, program, tmp_path / "eight", "int8-weight")
    assert eight.lowered.contract["minimum_deployment_target"] == "iOS17"
    assert _weights(four) < 0.9 * _weights(eight)
