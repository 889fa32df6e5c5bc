"""Rewrites of ops that OpenVINO lacks or mistypes: NaN, infinities, ties, and both forms of each option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

from tests.legalize_support import Case, check

torch.manual_seed(0)
R = torch.randn
NAN, INF = float("nan"), float("inf")

HARD = torch.tensor([[NAN, 1.0, -2.0, INF, -INF, 0.0, -0.0, NAN, 5.0, 5.0, 1e30, 3.0]])
TIES = torch.randint(-3, 4, (3, 7))
NUMBERS = torch.tensor([-5, 7, -(2**31), 2**31 - 1, 3, 1, -1, -8], dtype=torch.int32)
AMOUNTS = torch.tensor([31, 30, 31, 31, 0, 31, 40, -2], dtype=torch.int32)
INDEX = torch.tensor([[0, 0, 2], [1, 1, 1]])
WITH_NAN = torch.tensor([[NAN, NAN, NAN, NAN], [NAN, 3.0, 1.0, 2.0], [2.0, INF, -INF, NAN], [1.0, 4.0, 2.0, 3.0]])


def equal(function: Any, *inputs: torch.Tensor, **more: Any) -> Case:
    return Case(function=function, inputs=(inputs,), rtol=0, atol=0, **more)


def near(function: Any, *inputs: torch.Tensor) -> Case:
    return Case(function=function, inputs=(inputs,), rtol=2e-6, atol=0)


def by_rows(function: Any) -> Case:
    inputs = tuple((R(n, 5),) for n in (3, 2, 7))
    return Case(function=function, inputs=inputs, dynamic=({0: Dim("n", min=2, max=16)},))


def _scattered(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    kinds = ("sum", "prod", "amax", "amin") if not x.is_floating_point() else ("sum", "prod", "amax", "amin", "mean")
    return [x.scatter_reduce(-1, i, s, kind, include_self=own) for kind in kinds for own in (True, False)]


def _scattered_by_rows(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    return [x.scatter_reduce(0, i, s, kind, include_self=own) for kind in ("sum", "mean") for own in (True, False)]


ROWS = tuple((R(n, 5), torch.randint(0, n, (n, 5)), R(n, 5)) for n in (3, 2, 7))
CASES: dict[str, list[Case]] = {
    "exp2_by_power": [near(lambda x, y: (torch.exp2(x), torch.exp2(y)), torch.linspace(-150, 140, 99), TIES)],
    "ldexp_by_power": [near(torch.ldexp, R(3, 7), TIES)],
    "hypot_with_nan": [
        near(torch.hypot, HARD, HARD.flip(1)),
        near(torch.hypot, HARD, torch.full_like(HARD, NAN)),
        near(torch.hypot, torch.tensor([3e38, 1e-40]), torch.tensor([1e38, 1e-40])),
    ],
    "left_shift_by_tensor": [
        equal(lambda x, n: (x << n, torch.bitwise_left_shift(x, n)), NUMBERS, AMOUNTS),
        equal(lambda x, n: x << n, NUMBERS.to(torch.int8), AMOUNTS.to(torch.int8) % 8),
        equal(lambda x, n: x << n, TIES, TIES.abs(), unchanged=True),
    ],
    "right_shift_by_tensor": [
        equal(lambda x, n: (x >> n, torch.bitwise_right_shift(x, n)), NUMBERS, AMOUNTS),
        equal(lambda x, n: x >> n, NUMBERS.to(torch.int16), AMOUNTS.to(torch.int16) % 16),
        equal(lambda x, n: x >> n, TIES, TIES.abs(), unchanged=True),
    ],
    "gcd_of_rows": [
        equal(lambda x, y: (torch.gcd(x, y), torch.gcd(x, y[:1])), TIES, TIES.flip(0)),
        equal(torch.gcd, TIES[0], TIES[1]),
        Case(
            function=torch.gcd,
            inputs=tuple((torch.arange(n)[:, None], torch.arange(9)[None]) for n in (3, 2, 7)),
            dynamic=({0: Dim("n", min=2, max=16)}, None),
        ),
    ],
    "cumsum_of_int64": [
        equal(lambda x: ((x > 0).cumsum(1), x.to(torch.int32).cumsum(-2), x.to(torch.int8).cumsum(0)), TIES),
        equal(lambda x: (x.cumsum(1), x.float().cumsum(0), x.cumsum(0, dtype=torch.int32)), TIES, unchanged=True),
    ],
    "prod_of_int64": [equal(lambda x: ((x > -9).prod(), x.to(torch.int8).prod(), x.prod()), TIES)],
    "prod_dim_of_int64": [
        equal(lambda x: ((x > 0).prod(1), x.to(torch.int32).prod(0, keepdim=True)), TIES),
        equal(lambda x: x.prod(1, dtype=torch.int32), TIES, unchanged=True),
    ],
    "cummax_by_doubling": [
        equal(lambda x: tuple(torch.cummax(x, 1)), HARD),
        equal(lambda x: tuple(torch.cummax(x, -2)), TIES),
        by_rows(lambda x: tuple(torch.cummax(x, 1))),
    ],
    "cummin_by_doubling": [
        equal(lambda x: tuple(torch.cummin(x, 1)), HARD.flip(1)),
        equal(lambda x: tuple(torch.cummin(x, 1)), TIES),
    ],
    "nanmedian_by_sort": [
        equal(lambda x: (torch.nanmedian(x, 1)[0], torch.nanmedian(x, 0, True)[0]), WITH_NAN),
        equal(lambda x: tuple(torch.nanmedian(x, 1)), WITH_NAN[3:]),
        by_rows(lambda x: tuple(torch.nanmedian(x, 1))),
    ],
    "nanmedian_of_row": [equal(torch.nanmedian, WITH_NAN), equal(torch.nanmedian, HARD)],
    "searchsorted_by_compare": [
        equal(
            lambda row, x: (torch.searchsorted(row, x), torch.searchsorted(row[0], x, side="right", out_int32=True)),
            R(1, 6).sort(1)[0],
            HARD,
        ),
        equal(lambda row, x: torch.searchsorted(row, x, right=True), TIES.sort(1)[0], TIES),
    ],
    "vector_norm_over_all_dims": [
        by_rows(lambda x: (torch.linalg.vector_norm(x), torch.linalg.vector_norm(x, 1, keepdim=True))),
        by_rows(lambda x: (torch.linalg.vector_norm(x, INF), torch.linalg.vector_norm(x, 3))),
        Case(function=lambda x: torch.linalg.vector_norm(x, 2, 1), inputs=((R(3, 5),),), unchanged=True),
    ],
    "vector_norm_of_order_zero": [
        by_rows(lambda x: (torch.linalg.vector_norm(x.relu(), 0), torch.linalg.vector_norm(x.relu(), 0, 1, True))),
    ],
    "median_of_row": [by_rows(torch.median)],
    "scatter_reduce_by_parts": [
        Case(function=_scattered, inputs=((R(2, 4), INDEX, R(2, 3)),)),
        Case(
            function=_scattered,
            inputs=((R(2, 4), INDEX, torch.tensor([[NAN, 1.0, -2.0, 7.0], [-INF, -INF, NAN, 7.0]])),),
        ),
        equal(_scattered, torch.randint(-9, 9, (2, 4)), INDEX, torch.randint(-(2**30), 2**30, (2, 3))),
        equal(_scattered, torch.randint(-9, 9, (2, 4)) * 2**40, INDEX, -torch.randint(1, 9, (2, 3)) * 2**50),
        Case(function=_scattered_by_rows, inputs=ROWS, dynamic=({0: Dim("n", min=2, max=16)},) * 3),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)
