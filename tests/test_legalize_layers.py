"""Rewrites of activations, reductions, norms, pooling, padding and resizing keep the program's meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from tests.legalize_support import Case, check

INF, NAN = float("inf"), float("nan")
R = torch.randn
torch.manual_seed(0)

SPECIAL = torch.tensor([-INF, -30.0, -2.5, -0.5, -0.0, 0.0, 0.3, 0.5, 2.5, 30.0, INF, NAN])
EXTREME = torch.tensor([[1e4, 0.0, -1e4], [-1e30, -1e30, -1e30], [88.0, 89.0, 90.0], [-INF, 0.0, -INF]])
COUNTS = torch.randint(0, 9, (3, 6))


def batches(*shape: int, sizes: tuple[int, ...] = (2, 1, 7)) -> tuple[tuple[torch.Tensor], ...]:
    return tuple((R(n, *shape),) for n in sizes)


def batch(low: int = 1) -> tuple[dict[int, Any]]:
    return ({0: Dim("n", min=low, max=16)},)


def filled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


CASES: dict[str, list[Case]] = {
    "gelu_tanh": [
        Case(function=lambda x: F.gelu(x, approximate="tanh"), inputs=((R(50),),)),
        Case(function=F.gelu, inputs=((R(5),),), unchanged=True),
    ],
    "celu_by_exp": [Case(function=lambda x: F.celu(x, 0.5), inputs=((SPECIAL,),))],
    "log_softmax_shifted": [
        Case(function=lambda x: torch.ops.aten._log_softmax(x, -1, False), inputs=((EXTREME,),)),
    ],
    "log_softmax_int_shifted": [
        Case(function=lambda x: F.log_softmax(x, -1), inputs=((EXTREME,),)),
        Case(function=lambda x: F.log_softmax(x, 0, dtype=torch.float64), inputs=((COUNTS,),)),
        Case(function=lambda x: F.log_softmax(x, 1), inputs=batches(5), dynamic=batch()),
    ],
    "softmax_dtype": [
        Case(function=lambda x: torch.softmax(x, 1, dtype=torch.float32), inputs=((COUNTS,),)),
        Case(function=lambda x: torch.softmax(x, 1), inputs=((R(2, 3),),), unchanged=True),
    ],
    "selu_written_out": [Case(function=F.selu, inputs=((SPECIAL,),))],
    "mish_written_out": [Case(function=F.mish, inputs=((SPECIAL,),))],
    "hardshrink_written_out": [Case(function=lambda x: F.hardshrink(x, 0.4), inputs=((SPECIAL,),))],
    "softshrink_written_out": [Case(function=lambda x: F.softshrink(x, 0.4), inputs=((SPECIAL,),))],
    "log_sigmoid_by_log1p": [Case(function=F.logsigmoid, inputs=((SPECIAL,),))],
    "log_sigmoid_forward_written_out": [
        Case(function=lambda x: torch.ops.aten.log_sigmoid_forward(x)[0], inputs=((SPECIAL,),))
    ],
    "threshold_by_select": [Case(function=lambda x: F.threshold(x, 0.1, 9.0), inputs=((SPECIAL,),))],
    "logit_written_out": [Case(function=lambda x: torch.logit(x, eps=1e-3), inputs=((torch.rand(9),),))],
    "softplus_threshold": [
        Case(function=lambda x: F.softplus(x, 2, 1), inputs=((SPECIAL,),)),
        Case(function=lambda x: F.softplus(x, 0.5, -3), inputs=((R(50) * 9,),)),
        Case(function=F.softplus, inputs=((SPECIAL,),), unchanged=True),
    ],
    "mean_dtype": [Case(function=lambda x: x.mean(dtype=torch.float32), inputs=((COUNTS,),))],
    "mean_dim_dtype": [
        Case(function=lambda x: x.mean(1, dtype=torch.float64), inputs=((COUNTS,),)),
        Case(function=lambda x: x.mean(1), inputs=((R(2, 3),),), unchanged=True),
    ],
    "sum_dtype": [Case(function=lambda x: x.sum(dtype=torch.float32) / 4, inputs=((COUNTS,),))],
    "sum_dim_dtype": [Case(function=lambda x: x.sum(1, dtype=torch.float32) / 4, inputs=((COUNTS,),))],
    "cumsum_dtype": [Case(function=lambda x: x.cumsum(1, dtype=torch.float32) / 4, inputs=((COUNTS,),))],
    "cumprod_dtype": [Case(function=lambda x: x.cumprod(1, dtype=torch.float32) / 4, inputs=((COUNTS,),))],
    "vector_norm_dtype": [
        Case(function=lambda x: torch.linalg.vector_norm(x, 2, 1, dtype=torch.float64), inputs=((R(2, 5),),))
    ],
    "prod_by_slices": [
        Case(function=lambda x: (x.prod(1), x.prod(-1, keepdim=True)), inputs=((R(2, 5, 3),),)),
        Case(function=lambda x: torch.prod(x, 1, dtype=torch.float32) / 2, inputs=((COUNTS,),)),
        Case(function=lambda x: x.prod(1), inputs=((COUNTS.to(torch.int32),),)),
        Case(function=lambda x: x.prod(0), inputs=batches(3), dynamic=batch()),
    ],
    "prod_all_by_slices": [Case(function=torch.prod, inputs=((R(2, 5),),))],
    "argmax_all": [
        Case(function=lambda x: (x.argmax(), x.argmax(keepdim=True)), inputs=((R(3, 4),),)),
        Case(function=lambda x: x.argmax(1), inputs=((R(3, 4),),), unchanged=True),
    ],
    "argmin_all": [Case(function=torch.argmin, inputs=batches(4), dynamic=batch())],
    "median_by_sort": [
        Case(function=lambda x: torch.median(x, 1)[0], inputs=batches(7), dynamic=batch()),
        Case(function=lambda x: tuple(torch.median(x, 1, keepdim=True)), inputs=((R(3, 6),),)),
        Case(function=lambda x: torch.median(x, 0)[0], inputs=((torch.tensor([1.0, NAN, 3.0, -INF]),),)),
    ],
    "std_mean_correction": [
        Case(function=lambda x: torch.std_mean(x, 1, correction=2), inputs=batches(6), dynamic=batch()),
        Case(function=lambda x: torch.std_mean(x, 1, correction=0, keepdim=True), inputs=((R(3, 4) + 1000,),)),
        Case(function=lambda x: torch.std_mean(x, 1, correction=1), inputs=((R(3, 1),),)),
        Case(function=lambda x: torch.std_mean(x, (0, 1), correction=1), inputs=batches(4, 3), dynamic=batch()),
    ],
    "std_mean_dim": [
        Case(function=lambda x: torch.std_mean(x, 1), inputs=((R(3, 1),),)),
        Case(function=lambda x: torch.ops.aten.std_mean.dim(x, [1], False, True), inputs=((R(3, 4),),)),
        Case(function=lambda x: torch.std_mean(x, 1, unbiased=False), inputs=batches(6), dynamic=batch()),
    ],
    "std_mean_all": [Case(function=lambda x: torch.std_mean(x, unbiased=True), inputs=((R(3, 4),),))],
    "var_mean_correction": [Case(function=lambda x: torch.var_mean(x, 1, correction=1), inputs=((R(3, 4),),))],
    "var_mean_dim": [Case(function=lambda x: torch.ops.aten.var_mean.dim(x, [1], True, False), inputs=((R(3, 4),),))],
    "layer_norm_two_pass": [
        Case(function=filled(nn.LayerNorm([4, 5])), inputs=batches(4, 5), dynamic=batch()),
        Case(function=nn.LayerNorm(16), inputs=((R(2, 16) * 1e-2 + 1000,),), rtol=2e-2, atol=2e-2),
    ],
    "native_layer_norm_two_pass": [
        Case(
            function=lambda x, w, b: torch.ops.aten.native_layer_norm(x, [5], w, b, 1e-5),
            inputs=((R(3, 5), R(5), R(5)),),
        )
    ],
    "group_norm_two_pass": [
        Case(function=filled(nn.GroupNorm(2, 6)), inputs=batches(6, 3, 4), dynamic=batch()),
        Case(function=nn.GroupNorm(2, 6), inputs=((R(2, 6, 9) * 1e-2 + 300,),), rtol=2e-2, atol=2e-2),
    ],
    "instance_norm_two_pass": [
        Case(function=filled(nn.InstanceNorm2d(3, affine=True)), inputs=batches(3, 4, 5), dynamic=batch()),
        Case(function=nn.InstanceNorm2d(3), inputs=((R(1, 3, 5, 5) * 0.01 + 300,),), rtol=2e-2, atol=2e-2),
        Case(function=nn.InstanceNorm1d(3, track_running_stats=True), inputs=((R(2, 3, 5),),), unchanged=True),
    ],
    "rms_norm_written_out": [
        Case(function=filled(nn.RMSNorm(8, eps=1e-2)), inputs=((R(2, 4, 8) * 30,),)),
        Case(function=nn.RMSNorm(8), inputs=((torch.zeros(1, 8),), (R(1, 8) * 1e-20,), (R(1, 8) * 1e25,))),
        Case(function=nn.RMSNorm(8).half(), inputs=((R(2, 8).half() * 200,),), rtol=1e-3, atol=1e-3),
    ],
    "avg_pool2d_exact": [
        Case(function=nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), inputs=batches(2, 6, 7), dynamic=batch()),
        Case(function=nn.AvgPool2d(2, 3, ceil_mode=True, count_include_pad=False), inputs=((R(1, 2, 7, 7),),)),
        Case(function=nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), inputs=((R(1, 2, 6, 6),),)),
        Case(function=nn.AvgPool2d(3, 2, 1, count_include_pad=False, divisor_override=4), inputs=((R(1, 2, 7, 7),),)),
        Case(function=nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=5), inputs=((R(2, 6, 7),),)),
        Case(function=nn.AvgPool2d((3, 2), ceil_mode=True), inputs=((R(2, 6, 7),),)),
        Case(function=nn.AvgPool2d(2), inputs=((R(1, 2, 6, 6),),), unchanged=True),
    ],
    "avg_pool1d_exact": [
        Case(function=nn.AvgPool1d(2, 3, ceil_mode=True), inputs=batches(2, 7), dynamic=batch()),
        Case(function=nn.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False), inputs=((R(1, 2, 8),),)),
    ],
    "adaptive_avg_pool2d_by_windows": [
        Case(function=nn.AdaptiveAvgPool2d((3, 5)), inputs=batches(2, 7, 8), dynamic=batch()),
        Case(function=nn.AdaptiveAvgPool2d((3, 5)), inputs=((R(2, 2, 3),),)),
        Case(function=nn.AdaptiveAvgPool2d(1), inputs=((R(1, 2, 3, 4),),), unchanged=True),
    ],
    "adaptive_max_pool2d_by_windows": [
        Case(function=nn.AdaptiveMaxPool2d((2, 3), return_indices=True), inputs=batches(2, 7, 8), dynamic=batch()),
        Case(function=nn.AdaptiveMaxPool2d((2, 3)), inputs=((-R(2, 5, 4).abs(),),)),
    ],
    "max_pool2d_dilated": [
        Case(
            function=nn.MaxPool2d(3, 2, padding=1, dilation=2),
            inputs=batches(2, 11, 11),
            dynamic=batch(),
            rtol=0,
            atol=0,
        ),
        Case(function=nn.MaxPool2d(3, 2, 1, dilation=2, ceil_mode=True), inputs=((R(1, 2, 9, 11),),), rtol=0, atol=0),
        Case(function=nn.MaxPool2d((2, 3), dilation=(3, 1)), inputs=((torch.full((2, 9, 7), NAN),),), rtol=0, atol=0),
        Case(function=nn.MaxPool2d(2), inputs=((R(1, 1, 4, 4),),), unchanged=True),
    ],
    "constant_pad_negative": [
        Case(
            function=lambda x: torch.ops.aten.constant_pad_nd(x, [-1, 2, 0, -2], 3.0),
            inputs=batches(5, 6),
            dynamic=batch(),
        ),
        Case(function=lambda x: torch.ops.aten.constant_pad_nd(x, [-1, -1]), inputs=((R(2, 5),),)),
        Case(function=lambda x: torch.ops.aten.constant_pad_nd(x, [1, 1]), inputs=((R(2, 5),),), unchanged=True),
    ],
    "constant_pad_symbolic": [
        Case(
            function=lambda x: F.pad(x, (1, x.shape[1])),
            inputs=tuple((R(2, n),) for n in (5, 2, 12)),
            dynamic=({1: Dim("n", min=2, max=12)},),
        ),
        Case(
            function=lambda x: F.pad(x, (x.shape[1], 0, 1, 2), value=7.0),
            inputs=tuple((R(2, n),) for n in (5, 2)),
            dynamic=({1: Dim("n", min=2, max=12)},),
        ),
    ],
    "pad_circular": [
        Case(function=lambda x: F.pad(x, (1, 2, 3, 1), mode="circular"), inputs=batches(2, 6, 5), dynamic=batch()),
        Case(function=lambda x: F.pad(x, (-1, 2, 0, -2)), inputs=batches(3, 6, 5), dynamic=batch()),
        Case(function=lambda x: F.pad(x, (-1, 2), mode="circular"), inputs=((R(1, 2, 6),),)),
    ],
    "bilinear_by_index": [
        Case(
            function=nn.Upsample(scale_factor=1.7, mode="bilinear", align_corners=False),
            inputs=batches(2, 7, 9),
            dynamic=batch(),
        ),
        Case(function=nn.Upsample(scale_factor=0.4, mode="bilinear"), inputs=((R(1, 1, 8, 8),),)),
        Case(
            function=lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True),
            inputs=((R(1, 1, 5, 4),),),
        ),
        Case(function=nn.Upsample(scale_factor=2, mode="bilinear"), inputs=((R(1, 1, 4, 4),),), unchanged=True),
    ],
    "nearest_by_index": [
        Case(function=nn.Upsample(scale_factor=1.7), inputs=batches(2, 7, 9), dynamic=batch(), rtol=0, atol=0),
        Case(function=lambda x: F.interpolate(x, size=(5, 11)), inputs=((R(1, 2, 7, 9),),), rtol=0, atol=0),
    ],
    "nearest1d_by_index": [
        Case(function=nn.Upsample(scale_factor=1.7), inputs=batches(2, 7), dynamic=batch(), rtol=0, atol=0)
    ],
    "linear1d_by_index": [
        Case(function=nn.Upsample(scale_factor=1.7, mode="linear"), inputs=batches(2, 7), dynamic=batch())
    ],
    "antialiased_bilinear_by_matmul": [
        Case(
            function=lambda x: F.interpolate(x, size=(4, 5), mode="bilinear", antialias=True),
            inputs=batches(2, 9, 8),
            dynamic=batch(),
        ),
        Case(
            function=lambda x: F.interpolate(x, scale_factor=0.4, mode="bilinear", antialias=True),
            inputs=((R(1, 2, 9, 8),),),
        ),
        Case(function=lambda x: F.interpolate(x, size=13, mode="bilinear", antialias=True), inputs=((R(1, 1, 6, 6),),)),
    ],
    "upsample_bicubic2d_written_out": [
        Case(function=nn.Upsample(scale_factor=1.5, mode="bicubic"), inputs=batches(2, 5, 6), dynamic=batch())
    ],
    "upsample_nearest_exact1d_written_out": [
        Case(function=nn.Upsample(scale_factor=1.7, mode="nearest-exact"), inputs=batches(2, 7), dynamic=batch())
    ],
    "upsample_nearest_exact2d_written_out": [
        Case(function=nn.Upsample(scale_factor=2, mode="nearest-exact"), inputs=batches(2, 5, 6), dynamic=batch())
    ],
    "upsample_trilinear3d_written_out": [
        Case(function=nn.Upsample(scale_factor=2, mode="trilinear"), inputs=batches(2, 3, 4, 5), dynamic=batch())
    ],
    "upsample_nearest3d_written_out": [
        Case(function=nn.Upsample(scale_factor=1.5, mode="nearest"), inputs=batches(2, 3, 4, 5), dynamic=batch())
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)
