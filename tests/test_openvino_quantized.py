"""The OpenVINO target quantised: what is its own; what is alike on other targets stands in test_quantized_alike."""

from __future__ import annotations

from pathlib import Path

import torch

from targets import openvino
from tests.quantized_support import quantized, quantized_program, save, small_program


def test_a_full_range_is_computed_without_integer_kernels(tmp_path: Path) -> None:
    """Products of full 8-bit operands overflow on CPUs without VNNI: such a program says so in its manifest."""
    program = small_program(tmp_path)
    full = quantized(openvino, quantized_program(program, tmp_path), tmp_path / "full", "int8-static")
    assert any("VNNI" in line for line in full.lowered.warnings)
    narrow = quantized_program(program, tmp_path, weight_steps=63)
    assert not quantized(openvino, narrow, tmp_path / "narrow", "int8-static").lowered.warnings


def test_rows_that_are_no_whole_groups_have_eight_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)
    )
    x = torch.randn(8, 20)
    made = quantized(openvino, save(layers.eval(), (x,), tmp_path), tmp_path / "a", "int4-weight")
    assert made.lowered.contract["weights"] == "4-bit weights: MatMul (1); 8-bit weights: MatMul (2)"
    assert not made.lowered.unquantized
    assert made.snr([x]) > 15


def test_the_files_have_no_traces_of_the_builder(tmp_path: Path) -> None:
    made = quantized(openvino, small_program(tmp_path), tmp_path / "a", "int8-static")
    content = (made.folder / "model.xml").read_bytes()
    assert b"edgeport_node" not in content
    assert str(tmp_path).encode() not in content
