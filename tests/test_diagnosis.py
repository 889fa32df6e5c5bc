"""A converter's exception as one clear error: the op it names, and a reason that is the same on every run."""

from __future__ import annotations

import pytest
import torch

from targets.diagnosis import blame, first_reason


class _Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.isin(x, torch.tensor([1, 3]))


@pytest.mark.parametrize(
    ("text", "op"),
    [
        (
            "No ONNX function found for <OpOverload(op='aten.isin', overload='Tensor_Tensor')>",
            "aten.isin.Tensor_Tensor",
        ),
        ("No ONNX function found for <OpOverload(op='aten.searchsorted', overload='Tensor')>", "aten.searchsorted"),
        ("No ONNX function found for <OpOverload(op='prims.signbit', overload='default')>", "prims.signbit"),
        ("something is wrong", "the program"),
    ],
)
def test_an_op_that_the_converter_made_is_named_as_it_names_it(text: str, op: str) -> None:
    program = torch.export.export(_Net(), (torch.tensor([1, 2]),))
    error = blame(program, ValueError(text), model="net", runtime="the exporter")
    assert error.op == op
    assert error.remedy


def test_a_reason_holds_no_address_in_memory() -> None:
    words = "No conversion rule found for operations: <built-in function trunc>, <function sym_float at 0x7fd772aa9300>"
    assert first_reason(words).endswith("<function sym_float>")
