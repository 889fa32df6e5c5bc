"""What excuses a NaN or an infinity that differs: only what really reached an op that loses it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

from build.program import output_names, signature_of
from build.verify.nonfinite import Watch

NAN, INF = math.nan, math.inf


class TwoPaths(nn.Module):
    """One output behind a relu, one beside it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x) * 2, x * 3


class SumOfMasked(nn.Module):
    """An infinity that the program itself brings to the op."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, -INF).amax(-1)


def watch(module: nn.Module, *unsafe: str) -> tuple[Watch, list[str]]:
    """A watch over a module with one input ``x`` of shape [2, 3], and its outputs' names."""
    program = torch.export.export(module.eval(), (torch.randn(2, 3),))
    return Watch(lambda: program, signature_of(program), unsafe), output_names(program)


def call(*rows: float) -> Mapping[str, np.ndarray]:
    return {"x": np.array([rows, (1.0, 2.0, 3.0)], dtype=np.float32)}


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize("where", ["aten.relu.default", "aten.relu.default at test_nonfinite.py:", "edge at test_nonf"])
def test_only_what_is_computed_from_the_op_is_excused(where: str) -> None:
    seen, (behind, beside) = watch(TwoPaths(), where)
    assert seen.excuses(call(NAN, 1, 1), behind, array(0.0), array(NAN))
    if where.startswith("aten"):
        assert not seen.excuses(call(NAN, 1, 1), beside, array(0.0), array(NAN))
    assert seen.named == [where]


def test_nothing_is_excused_where_every_value_is_finite() -> None:
    seen, (behind, _) = watch(TwoPaths(), "aten.relu.default")
    assert not seen.excuses(call(0, 1, 1), behind, array(NAN), array(0.0))
    assert not seen.excuses(call(0, 1, 1), behind, array(-INF), array(-200.0))
    assert seen.named == []


def test_an_infinity_may_be_lost_but_none_made() -> None:
    seen, (out,) = watch(SumOfMasked(), "aten.amax.default")
    assert seen.excuses(call(-1, -1, -1), out, array(-3.4e38, 3.0), array(-INF, 3.0))
    assert not seen.excuses(call(-1, -1, -1), out, array(-INF, NAN), array(-INF, 3.0))
    assert not seen.excuses(call(1, 1, 1), out, array(-INF, 3.0), array(1.0, 3.0))


def test_a_nan_may_be_put_elsewhere() -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x, -1).values

    seen, (out,) = watch(Sorted(), "aten.sort.default")
    assert seen.excuses(call(NAN, 1, 2), out, array(NAN, 1, 2), array(1, 2, NAN))


def test_without_a_list_nothing_is_excused() -> None:
    seen, (behind, _) = watch(TwoPaths())
    assert not seen.excuses(call(NAN, 1, 1), behind, array(0.0), array(NAN))
