"""Rewrites of 8-bit and 16-bit integers, comparisons with NaN, and spreads of everything, for OpenVINO."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from build.errors import LoweringError
from build.legalize import legalize
from build.program import op_name
from tests.legalize_support import Case, check, export

torch.manual_seed(0)
R = torch.randn
NAN, INF = float("nan"), float("inf")

SIGNED = torch.tensor([-128, -127, -100, -7, -1, 0, 1, 6, 100, 127], dtype=torch.int8)
OTHER = torch.tensor([-1, -127, 100, -7, 3, 2, 100, -128, 100, 127], dtype=torch.int8)
#: two operands of each narrow type; the second holds no zero.
PAIRS = (
    (SIGNED, OTHER),
    (SIGNED.view(torch.uint8), OTHER.view(torch.uint8)),
    (SIGNED.to(torch.int16) * 256, OTHER.to(torch.int16) * 255),
)
WIDE = torch.tensor([300, -300, 127, 128, -129, 65535, 100000, -(2**31), 2**31 - 1])
X = torch.tensor([NAN, 1.0, 2.0, NAN, INF, -INF, 0.0, -0.0])
Y = torch.tensor([1.0, NAN, 2.0, NAN, INF, INF, -0.0, 1.0])


def equal(function: Any, *inputs: torch.Tensor, **more: Any) -> Case:
    return Case(function=function, inputs=(inputs,), rtol=0, atol=0, **more)


def pairs(function: Any) -> list[Case]:
    return [equal(function, *pair) for pair in PAIRS]


def _divided(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.div(x, y, rounding_mode="trunc"), torch.div(x, 3, rounding_mode="floor")


def _multiplied(x: torch.Tensor, y: torch.Tensor) -> Any:
    left, right = x.reshape(2, 5), y.reshape(5, 2)
    return left @ right, torch.bmm(left[None], right[None]), torch.mv(left, right[:, 0])


ROWS_WITH_NAN = torch.tensor([[1.0, float("nan"), -3.0, 2.5], [4.0, 0.5, -float("inf"), 7.0], [9.0, -2.0, 0.25, 6.0]])

CASES: dict[str, list[Case]] = {
    "narrow_integers": [
        *pairs(lambda x, y: (x + y, x - y, x * y, -x, x.abs(), 5 - x)),
        *pairs(lambda x, y: (x + 1, x * 3, x * 1000, torch.add(x, y, alpha=3), torch.addcmul(x, x, y))),
        *pairs(lambda x, y: (x**2, y**3, x**7, x.square(), x**1)),
        *pairs(lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        *pairs(lambda x, y: (torch.sum(x, dtype=x.dtype), torch.sum(y, 0, dtype=x.dtype), y.cumsum(0, dtype=x.dtype))),
        *pairs(lambda x, y: x.index_put((torch.zeros(10, dtype=torch.int64),), y, accumulate=True)),
        *(equal(_multiplied, *pair) for pair in PAIRS[:2]),
        equal(lambda t: (t.to(torch.int16), t.to(torch.int32).to(torch.int16), t.to(torch.int8)), WIDE),
    ],
    "div_of_narrow_integers": [
        *pairs(_divided),
        equal(_divided, R(4), R(4), unchanged=True),
    ],
    "floor_divide_of_narrow_integers": pairs(lambda x, y: (x // y, x // 3)),
    "remainder_of_narrow_integers": pairs(lambda x, y: (x % y, x % 7)),
    "fmod_of_narrow_integers": pairs(lambda x, y: (torch.fmod(x, y), torch.fmod(x, 7))),
    "less_for_greater": [
        equal(lambda x, y: (x > y, x >= y, x > 1, x >= 0.5, torch.where(x > y, x, y), y[:1] >= x), X, Y),
        equal(lambda x, y: (x > y, y >= x, x > 0, y > 1.5, y >= torch.tensor(2.0)), X, torch.arange(8)),
    ],
    "sort_of_nan": [
        equal(lambda x: (*torch.sort(x, 1), *torch.sort(x, 0, True)), ROWS_WITH_NAN),
        equal(lambda x: tuple(torch.sort(x)), torch.arange(5), unchanged=True),
    ],
    "stable_sort_of_nan": [
        equal(
            lambda x: (*torch.sort(x, dim=1, stable=True), *torch.sort(x, dim=0, stable=True, descending=True)),
            ROWS_WITH_NAN,
        ),
        equal(lambda x: tuple(torch.sort(x, stable=True)), torch.arange(5), unchanged=True),
    ],
    "topk_of_nan": [
        equal(lambda x: (*x.topk(2, 1), *x.topk(2, 0, largest=False)), ROWS_WITH_NAN),
        equal(lambda x: tuple(x.topk(2)), torch.arange(5), unchanged=True),
    ],
    "bucketize_of_nan": [
        equal(lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), X),
        equal(lambda x: torch.bucketize(x, torch.tensor([0.0, 2.0]), out_int32=True, right=True), X),
        equal(torch.bucketize, torch.arange(5), torch.arange(3), unchanged=True),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)


@pytest.mark.parametrize("rewrite", ["narrow_integers", "less_for_greater"])
def test_other_numbers_are_left_alone(rewrite: str) -> None:
    def model(x: torch.Tensor, t: torch.Tensor) -> Any:
        return x + 1, t * t, t > 3, x < 2, t.to(torch.uint8), -x, t.to(torch.uint8) > 3

    program = export(Case(function=model, inputs=((R(3), torch.arange(3)),)))
    before = [op_name(n) for n in program.graph.nodes]
    assert [op_name(n) for n in legalize(program, [rewrite]).graph.nodes] == before


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.pow(y.abs()),
        lambda x, y: x.cumprod(0, dtype=x.dtype),
        lambda x, y: x.repeat(300)[None] @ y.repeat(300)[:, None],
    ],
)
def test_what_cannot_wrap_is_refused_with_the_way_out(function: Any) -> None:
    program = export(Case(function=function, inputs=(PAIRS[0],)))
    with pytest.raises(LoweringError, match="int8 results") as caught:
        legalize(program, ["narrow_integers"])
    assert caught.value.op
    assert caught.value.source
    assert "int32" in str(caught.value.remedy)
