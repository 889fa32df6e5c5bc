"""A query that may see nothing gets zeros on every target, as in PyTorch; capture asks the question."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from build.capture.reference import edge_inputs, leaves_ties_open
from build.program import signature_of
from targets import registry
from tests.lowering_support import check, lowered, program_of


def _by_flags(x: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, None, :])


def _by_addition(x: Tensor, mask: Tensor) -> Tensor:
    bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(x, x, x, attn_mask=bias[:, None, None, :])


@pytest.mark.parametrize("target", list(registry.all_targets()))
def test_a_sequence_that_is_all_padding_gets_zeros(target: str, tmp_path: Path) -> None:
    def both(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return _by_flags(x, mask), _by_addition(x, mask)

    x = torch.randn(3, 2, 5, 4)
    some = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1]], dtype=torch.bool)
    calls = [[x, some], [x, torch.zeros_like(some)], [x, torch.ones_like(some)]]
    assert float(both(*calls[0])[0][1].abs().max()) == 0.0
    module = registry.load(registry.select([target])[0])
    made = lowered(module, program_of(both, (x, some), tmp_path), tmp_path / "out")
    check(made, calls, 1e-5)


def test_masks_are_asked_about_when_they_hide_everything_and_nothing() -> None:
    x, mask = torch.randn(1, 2, 5, 4), torch.rand(1, 5) > 0.5

    class Net(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return _by_flags(x, mask)

    program = torch.export.export(Net(), (x, mask))
    made = edge_inputs(signature_of(program), {"x": x, "mask": mask})
    assert set(made) == {"zeros", "large", "false", "true"}
    assert not made["false"]["mask"].any()
    assert made["true"]["mask"].all()
    assert torch.equal(made["false"]["x"], x)


def test_equal_values_are_no_question_where_their_order_is_open() -> None:
    class Best(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.topk(x, 3, dim=-1).indices

    x = torch.randn(2, 8)
    program = torch.export.export(Best(), (x,))
    assert leaves_ties_open(program)
    assert set(edge_inputs(signature_of(program), {"x": x}, ties=False)) == {"large"}
