"""The Core ML target quantised: what is its own; what is alike on other targets stands in test_quantized_alike."""

from __future__ import annotations

from pathlib import Path

from targets import coreml
from tests.quantized_support import Quantized, quantized, small_program


def _weights(made: Quantized) -> int:
    """Bytes of the file that holds the weights."""
    return (made.folder / "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin").stat().st_size


def test_four_bits_need_a_later_system(tmp_path: Path) -> None:
    program = small_program(tmp_path)
    four = quantized(coreml, program, tmp_path / "four", "int4-weight")
    assert four.lowered.contract["minimum_deployment_target"] == "iOS18"
    eight = quantized(coreml, program, tmp_path / "eight", "int8-weight")
    assert eight.lowered.contract["minimum_deployment_target"] == "iOS17"
    assert _weights(four) < 0.9 * _weights(eight)
