"""The rewrites that ExecuTorch needs keep a program's meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from build.legalize import legalize
from build.program import op_name, op_nodes
from targets.xnnpack.lowering import FP16_REWRITES, REWRITES


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def warm(norm: Any) -> Any:
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.weight.data.uniform_(0.5, 1.5)
    norm.bias.data.normal_()
    return norm


def rewritten(module: nn.Module, x: torch.Tensor, rewrites: Any = REWRITES) -> tuple[Any, Any, set[str]]:
    """PyTorch's result, the rewritten program's, and the ops that the rewritten program holds."""
    program = legalize(torch.export.export(module, (x,)), rewrites)
    with torch.no_grad():
        want, got = module(x), program.module()(x)
    got = got if isinstance(got, tuple) else (got,)
    return want if isinstance(want, tuple) else (want,), got, {op_name(n) for n in op_nodes(program)}


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], str]] = {
    "conv3d": (lambda: nn.Conv3d(4, 6, 3, 2, 1, 1, 2), lambda: torch.randn(2, 4, 6, 7, 5), "aten.conv3d.default"),
    "conv_norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), warm(nn.BatchNorm2d(3))),
        lambda: torch.randn(2, 2, 6, 6),
        "aten.batch_norm.default",
    ),
    "lone_norm": (lambda: warm(nn.BatchNorm1d(3)), lambda: torch.randn(4, 3, 5), "aten.batch_norm.default"),
    "linear_norm_rank3": (
        lambda: nn.Sequential(nn.Linear(5, 4), warm(nn.BatchNorm1d(3))),
        lambda: torch.randn(2, 3, 5),
        "aten.batch_norm.default",
    ),
    "group_norm": (lambda: nn.GroupNorm(2, 4), lambda: torch.randn(2, 4, 3, 3), "aten.group_norm.default"),
    "local_response": (lambda: nn.LocalResponseNorm(3), lambda: torch.randn(1, 5, 4, 4), "aten.avg_pool3d.default"),
    "sort": (
        lambda: Function(lambda s, x: tuple(x.sort(1, descending=True))),
        lambda: torch.tensor([[1.0, float("nan"), 3.0, 3.0, -float("inf")]]),
        "aten.sort.default",
    ),
    "sign": (
        lambda: Function(lambda s, x: torch.sign(x)),
        lambda: torch.tensor([float("nan"), -0.0, 2.0, -float("inf")]),
        "aten.sign.default",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rewrite_keeps_the_result_and_removes_the_op(name: str) -> None:
    make, values, gone = CASES[name]
    torch.manual_seed(0)
    want, got, ops = rewritten(make().eval(), values())
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert gone not in ops


@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(16), lambda: nn.GroupNorm(1, 16)])
def test_norms_stay_exact_at_a_large_mean(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16) * 1e-2 + 1000
    module = make().eval()
    with torch.no_grad():
        exact = module.double()(x.double()).float()
        module.float()
        got = legalize(torch.export.export(module, (x,)), REWRITES).module()(x)
    got = got[0] if isinstance(got, tuple) else got
    torch.testing.assert_close(got, exact, rtol=1e-2, atol=1e-2)


def test_a_shared_layer_is_folded_into_each_of_its_norms() -> None:
    torch.manual_seed(0)
    module = Function(
        lambda s, x: (s.a(s.c(x)), s.b(s.c(x * 2))),
        c=nn.Conv2d(2, 2, 1),
        a=warm(nn.BatchNorm2d(2)),
        b=warm(nn.BatchNorm2d(2)),
    ).eval()
    want, got, ops = rewritten(module, torch.randn(1, 2, 5, 5))
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
    assert "aten.batch_norm.default" not in ops


def test_half_inside_keeps_float_inputs_and_outputs() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3), nn.Softmax(-1)).eval()
    program = legalize(torch.export.export(module, (torch.randn(2, 1, 8, 8),)), FP16_REWRITES)
    dtypes = {op_name(n): n.meta["val"].dtype for n in op_nodes(program)}
    assert dtypes["aten.conv2d.default"] is torch.float16
    assert dtypes["aten.softmax.int"] is torch.float32
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        got = program.module()(x)
        got = got[0] if isinstance(got, tuple) else got
        torch.testing.assert_close(got, module(x), rtol=5e-3, atol=5e-3)
    assert got.dtype is torch.float32


def test_half_inside_leaves_values_beyond_its_range_in_float32() -> None:
    scale = nn.Parameter(torch.tensor([1e5, -7e4, 1.0]))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.scale) * 1e-3

    x = torch.ones(2, 3)
    program = legalize(torch.export.export(Scaled(), (x,)), FP16_REWRITES)
    got = program.module()(x)
    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, Scaled()(x))


def test_channels_last_example_is_captured_contiguous() -> None:
    x = torch.randn(1, 1, 4, 4).to(memory_format=torch.channels_last)
    program = legalize(torch.export.export(nn.Conv2d(1, 2, 1), (x,)), REWRITES)
    value = next(n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name == "input")
    assert value.stride() == torch.empty(1, 1, 4, 4).stride()
