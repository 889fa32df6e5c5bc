"""Rewrites of normalisation, volumes, projected LSTM and one-dimensional transposed convolution keep the meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from build.legalize import legalize
from tests.legalize_support import Case, check, export

NAN, INF = float("nan"), float("inf")
R = torch.randn
torch.manual_seed(0)


def batches(*shape: int, sizes: tuple[int, ...] = (2, 1, 7)) -> tuple[tuple[torch.Tensor], ...]:
    return tuple((R(n, *shape),) for n in sizes)


def batch() -> Any:
    return ({0: Dim("n", min=1, max=16)},)


def warm(layer: Any) -> Any:
    """A norm with weights, and statistics where it keeps them, that are not those of a fresh one."""
    if getattr(layer, "running_mean", None) is not None:
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    layer.weight.data.uniform_(0.5, 1.5)
    layer.bias.data.normal_()
    return layer


class _First(nn.Module):
    """A recurrent layer's outputs and states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        y, (h, c) = self.layer(x)
        return y, h, c


def _by_batch(x: torch.Tensor, weight: Any = None, bias: Any = None) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


CASES: dict[str, list[Case]] = {
    "layer_norm_centred": [
        Case(function=warm(nn.LayerNorm(6)), inputs=batches(3, 6), dynamic=batch()),
        Case(function=warm(nn.LayerNorm((3, 6), eps=0.1)), inputs=((R(2, 3, 6) * 1e3,),)),
        Case(
            function=nn.LayerNorm(4, elementwise_affine=False),
            inputs=((torch.tensor([[1.0, NAN, 2, 3], [1, 2, 3, 4]]),),),
        ),
    ],
    "group_norm_centred": [
        Case(function=warm(nn.GroupNorm(2, 4)), inputs=batches(4, 3, 5), dynamic=batch()),
        Case(
            function=warm(nn.GroupNorm(4, 4)),
            inputs=tuple((R(2, 4, h, 5),) for h in (3, 2, 9)),
            dynamic=({2: Dim("h", min=2, max=9)},),
        ),
        Case(function=nn.GroupNorm(3, 6, affine=False), inputs=((R(2, 6),),)),
        Case(function=nn.GroupNorm(2, 2), inputs=((torch.tensor([[[1.0, NAN, 2], [1, 2, 3]]]),),)),
    ],
    "instance_norm_centred": [
        Case(function=warm(nn.InstanceNorm2d(3, affine=True)), inputs=batches(3, 4, 5), dynamic=batch()),
        Case(function=nn.InstanceNorm1d(3, eps=0.01), inputs=((R(2, 3, 8),),)),
        Case(
            function=warm(nn.InstanceNorm2d(3, affine=True, track_running_stats=True)),
            inputs=((R(2, 3, 4, 4),),),
            unchanged=True,
        ),
    ],
    "batch_norm_of_batch": [
        Case(function=_by_batch, inputs=batches(3, 4, 5), dynamic=batch(), atol=1e-5),
        Case(function=_by_batch, inputs=((R(8, 3) * 2 + 5, R(3), R(3)),), atol=1e-5),
    ],
    "conv3d_by_planes": [
        Case(function=nn.Conv3d(4, 6, 3, 2, 1, groups=2), inputs=batches(4, 5, 6, 7), dynamic=batch(), atol=1e-5),
        Case(
            function=nn.Conv3d(2, 3, (2, 1, 3), (1, 2, 1), (0, 1, 2), (2, 1, 1), bias=False),
            inputs=((R(1, 2, 5, 6, 7),),),
            atol=1e-5,
        ),
        Case(function=nn.Conv3d(2, 3, 2), inputs=((R(2, 4, 4, 4),),), atol=1e-5),
        Case(
            function=nn.Conv3d(2, 3, 2),
            inputs=tuple((R(1, 2, d, 4, 4),) for d in (5, 3, 9)),
            dynamic=({2: Dim("d", min=3, max=9)},),
            unchanged=True,
        ),
    ],
    "avg_pool3d_by_planes": [
        Case(function=nn.AvgPool3d(2), inputs=batches(3, 4, 6, 5), dynamic=batch()),
        Case(function=nn.AvgPool3d((3, 2, 1), (1, 2, 1), (1, 1, 0)), inputs=((R(2, 3, 5, 6, 4),),)),
        Case(function=nn.AvgPool3d((3, 1, 1), (2, 1, 1), divisor_override=5), inputs=((R(3, 7, 4, 4),),)),
        Case(function=nn.AvgPool3d(2, divisor_override=3), inputs=((R(1, 2, 4, 4, 4),),)),
        Case(function=nn.LocalResponseNorm(3), inputs=batches(5, 4, 4), dynamic=batch()),
        Case(function=nn.AvgPool3d(2, ceil_mode=True), inputs=((R(1, 2, 5, 5, 5),),), unchanged=True),
        Case(function=nn.AvgPool3d(3, 2, 1, count_include_pad=False), inputs=((R(1, 2, 5, 5, 5),),), unchanged=True),
    ],
    "unroll_projected_lstm": [
        Case(
            function=_First(nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, proj_size=3)),
            inputs=batches(4, 6),
            dynamic=batch(),
        ),
        Case(function=_First(nn.LSTM(6, 5, bias=False, proj_size=2)), inputs=((R(4, 2, 6),),)),
        Case(function=_First(nn.LSTM(6, 5)), inputs=((R(4, 2, 6),),), unchanged=True),
    ],
    "transposed_convolution1d_cropped": [
        Case(function=nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), inputs=((R(2, 4, 5),),), atol=1e-5),
        Case(function=nn.ConvTranspose1d(4, 6, 5, 3, 2, 0, 2, False), inputs=((R(2, 4, 5),),), atol=1e-5),
        Case(function=nn.ConvTranspose1d(4, 6, 3, 3, 0, 2, 2, True, 2), inputs=((R(1, 4, 7),),), atol=1e-5),
        Case(function=nn.ConvTranspose1d(4, 6, 3, 2, 1), inputs=((R(2, 4, 5),),), unchanged=True),
    ],
    "fold_batch_norm": [
        Case(
            function=nn.Sequential(nn.Conv2d(2, 4, 3, groups=2, bias=False), warm(nn.BatchNorm2d(4))),
            inputs=batches(2, 6, 6),
            dynamic=batch(),
            atol=1e-5,
        ),
        Case(
            function=nn.Sequential(nn.Linear(5, 4), warm(nn.BatchNorm1d(4))),
            inputs=batches(5),
            dynamic=batch(),
            atol=1e-5,
        ),
        Case(function=nn.Sequential(nn.Linear(5, 4), warm(nn.BatchNorm1d(3))), inputs=((R(2, 3, 5),),), atol=1e-5),
        Case(
            function=nn.Sequential(nn.ConvTranspose2d(2, 3, 2), warm(nn.BatchNorm2d(3))),
            inputs=((R(1, 2, 4, 4),),),
            atol=1e-5,
        ),
        Case(function=nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.ReLU()), inputs=((R(2, 3, 4, 4),),)),
        Case(function=warm(nn.BatchNorm1d(3, eps=0.5)), inputs=((R(4, 3),),)),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6)])
def test_training_batch_norm_gives_the_same_output_and_new_statistics(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = warm(nn.BatchNorm1d(3, momentum=0.3)).train()
    x = R(*shape) * 3 + 5
    program = torch.export.export(layer, (x,)).run_decompositions({})
    assert any("_native_batch_norm_legit_functional" in str(n.target) for n in program.graph.nodes)
    legal = legalize(program, ["training_batch_norm"])
    assert not any("_native_batch_norm_legit_functional" in str(n.target) for n in legal.graph.nodes)
    rewritten = legal.module()
    for value in (x, x * 2 - 1):
        torch.testing.assert_close(rewritten(value), layer(value), rtol=1e-5, atol=1e-5)
        state = dict(rewritten.named_buffers())
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(state[name], getattr(layer, name), rtol=1e-5, atol=1e-5)


def test_norms_of_a_large_mean_lose_no_digits() -> None:
    x = R(2, 16) * 1e-2 + 1000
    exact = F.layer_norm(x.double(), (16,)).float()
    legal = legalize(export(Case(function=lambda v: F.layer_norm(v, (16,)), inputs=((x,),))), ["layer_norm_centred"])
    torch.testing.assert_close(legal.module()(x), exact, rtol=1e-2, atol=1e-2)
