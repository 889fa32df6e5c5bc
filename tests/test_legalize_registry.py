"""The registry of rewrites: each says its fault and has a test; those of whole graphs; the order they are tried in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from build.legalize import REGISTRY, legalize
from build.program import input_names, output_names
from tests.legalize_support import Case, export, names_in_tests, tensors

R = torch.randn
torch.manual_seed(0)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_rewrite_has_a_test(name: str) -> None:
    assert name in names_in_tests(), f"no test in tests/ names the rewrite '{name}'"


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_rewrite_names_its_fault(name: str) -> None:
    rewrite = REGISTRY[name]
    assert len(rewrite.fault.split()) > 3
    assert (rewrite.decompose is None) != (rewrite.graph_pass is None)
    assert rewrite.decompose is None or rewrite.ops


def test_fill_defaults_writes_every_positional_argument() -> None:
    program = export(Case(function=nn.MaxPool2d(2), inputs=((R(1, 1, 4, 4),),)))
    want = program.module()(*program.example_inputs[0])
    legal = legalize(program, ["fill_defaults"])
    node = next(n for n in legal.graph.nodes if n.op == "call_function")
    assert list(node.args[1:]) == [[2, 2], [2, 2], [0, 0], [1, 1], False] or len(node.args) == 6
    torch.testing.assert_close(legal.module()(*program.example_inputs[0]), want)


def test_rename_clashes_keeps_public_names() -> None:
    def clash(x: torch.Tensor) -> dict[str, torch.Tensor]:
        floor = torch.floor(x)
        return {"floor": floor, "tanh": torch.tanh(floor)}

    program = export(Case(function=clash, inputs=((R(4),),)))
    names = {n.name for n in program.graph.nodes}
    assert {"floor", "tanh"} <= names
    public = (input_names(program), output_names(program))
    x = R(4)
    want = program.module()(x)
    legal = legalize(program, ["rename_clashes"])
    assert not {"floor", "tanh"} & {n.name for n in legal.graph.nodes}
    assert (input_names(legal), output_names(legal)) == public
    torch.testing.assert_close(legal.module()(x), want)


def test_drop_derived_ranges_lets_a_reloaded_program_be_decomposed(tmp_path: Any) -> None:
    eight = 8 * Dim("n", min=1, max=6)
    case = Case(
        function=lambda x: F.gelu(F.avg_pool1d(x, 4), approximate="tanh"),
        inputs=((R(2, 3, 24),),),
        dynamic=({2: eight},),
    )
    torch.export.save(export(case), tmp_path / "p.pt2")
    program = torch.export.load(tmp_path / "p.pt2")
    legal = legalize(program, ["drop_derived_ranges", "gelu_tanh"])
    for size in (8, 40, 48):
        x = R(2, 3, size)
        torch.testing.assert_close(legal.module()(x), F.gelu(F.avg_pool1d(x, 4), approximate="tanh"))


def test_rewrites_of_one_op_are_tried_in_order() -> None:
    program = export(Case(function=lambda x, y: (x // y, (x * 10).int() // 3), inputs=((R(6), R(6)),)))
    inputs = (R(6), R(6))
    want = tensors(program.module()(*inputs))
    legal = legalize(program, ["float_floor_division", "int_floor_division_by_trunc"])
    assert not any("floor_divide" in str(n.target) for n in legal.graph.nodes)
    torch.testing.assert_close(tensors(legal.module()(*inputs)), want, rtol=0, atol=0)
