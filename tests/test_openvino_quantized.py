"""The OpenVINO target quantised: what is its own; what is alike on other targets stands in test_quantized_alike."""

from __future__ import annotations

from pathlib import Path

from targets import openvino
from tests.quantized_support import quantized, quantized_program, small_program


def test_a_full_range_is_computed_without_integer_kernels(tmp_path: Path) -> None:
    """Products of full 8-bit operands overflow on CPUs without VNNI: such a program says so in its manifest."""
    program = small_program(tmp_path)
    full = quantized(openvino, quantized_program(program, tmp_path), tmp_path / "full", "int8-static")
    assert any("VNNI" in line for line in full.lowered.warnings)
    narrow = quantized_program(program, tmp_path, weight_steps=63)
    assert not quantized(openvino, narrow, tmp_path / "narrow", "int8-static").lowered.warnings


def test_the_files_have_no_traces_of_the_builder(tmp_path: Path) -> None:
    made = quantized(openvino, small_program(tmp_path), tmp_path / "a", "int8-static")
    content = (made.folder / "model.xml").read_bytes()
    assert b"edgeport_node" not in content
    assert str(tmp_path).encode() not in content
