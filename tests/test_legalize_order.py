"""Rewrites of reductions, sorts, scans and signs keep the program's meaning, with NaN, ties and infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

from tests.legalize_support import Case, check

INF, NAN = float("inf"), float("nan")
R = torch.randn
torch.manual_seed(0)

#: NaN in the first, a middle and the last place, twice in one row, and alone; ties; infinities.
HARD = torch.tensor(
    [
        [NAN, 1.0, 3.0, 3.0],
        [2.0, NAN, -INF, NAN],
        [-1.0, -1.0, -2.0, NAN],
        [NAN, NAN, NAN, NAN],
        [5.0, 7.0, 7.0, -3.0],
        [INF, -INF, INF, -INF],
        [0.0, -0.0, 0.0, -0.0],
    ]
)
WHOLE = torch.tensor([[5, -12, 7, 7], [0, 255, -6, -12]])


def rows(*sizes: int) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Inputs ``[n, 4]`` for sizes 7 (the hard ones), and others."""
    return ((HARD,), *((R(n, 4),) for n in sizes), (HARD[3:4],))


def batch() -> Any:
    return ({0: Dim("n", min=1, max=16)},)


def exact(function: Any, **more: Any) -> Case:
    """Dynamic rows, equal bits."""
    return Case(function=function, inputs=rows(1, 12), dynamic=batch(), rtol=0, atol=0, **more)


def fixed(function: Any, *inputs: torch.Tensor, **more: Any) -> Case:
    return Case(function=function, inputs=(inputs,), rtol=0, atol=0, **more)


def both(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(found)


def _of_all(spread: Callable[..., Any]) -> list[Case]:
    """Everything, in each overload; one dimension, and kept ones, are left alone."""
    return [
        Case(
            function=lambda x: (spread(x), spread(x, (0, 1), correction=0)),
            inputs=((R(4, 5),), (R(1, 5),)),
            dynamic=batch(),
        ),
        Case(
            function=lambda x: (spread(x, unbiased=False), spread(x, (1, 0), unbiased=False)),
            inputs=((R(4, 2),),),
        ),
        Case(
            function=lambda x: (spread(x, 1, correction=1), spread(x, (0, 1), True, True)),
            inputs=((R(4, 2),),),
            unchanged=True,
        ),
    ]


CASES: dict[str, list[Case]] = {
    "max_dim_with_nan": [
        exact(lambda x: (*both(x.max(1)), *both(x.max(0, keepdim=True)))),
        fixed(lambda x: both(x.max(-1)), WHOLE, unchanged=True),
    ],
    "min_dim_with_nan": [exact(lambda x: (*both(x.min(-1)), *both(x.min(0, keepdim=True))))],
    "max_all_with_nan": [exact(torch.max), fixed(torch.max, HARD[4:6]), fixed(torch.max, WHOLE, unchanged=True)],
    "min_all_with_nan": [exact(torch.min), fixed(torch.min, HARD[4:6]), fixed(torch.min, R(1)[0], unchanged=True)],
    "amax_with_nan": [exact(lambda x: (x.amax(1), x.amax((0, 1)), x.amax(), x.amax(-1, keepdim=True)))],
    "amin_with_nan": [exact(lambda x: (x.amin(1), x.amin((0, 1)), x.amin(), x.amin(-1, keepdim=True)))],
    "argmax_with_nan": [
        exact(lambda x: (x.argmax(1), x.argmax(0), x.argmax(-1, keepdim=True))),
        fixed(lambda x: (x.argmax(), x.argmax(keepdim=True)), HARD),
        fixed(torch.argmax, R(5, 4)),
        fixed(lambda x: x.argmax(1), WHOLE, unchanged=True),
    ],
    "argmin_with_nan": [
        exact(lambda x: (x.argmin(1), x.argmin(0), x.argmin(-1, keepdim=True))),
        fixed(torch.argmin, HARD),
    ],
    "sign_of_nan": [
        exact(lambda x: (torch.sign(x), torch.sgn(x))),
        fixed(torch.sign, WHOLE),
        fixed(torch.sign, torch.tensor([True, False]), unchanged=True),
    ],
    "sort_by_rank": [
        exact(lambda x: (*both(x.sort(1)), *both(x.sort(-1, descending=True)))),
        fixed(lambda x: both(x.sort(0)), WHOLE),
        fixed(lambda x: both(x.sort()), torch.tensor(3.0), unchanged=True),
        fixed(lambda x: both(x.sort(0)), torch.arange(300.0), unchanged=True),
    ],
    "stable_sort_by_rank": [
        exact(lambda x: (*both(x.sort(dim=1, stable=True)), *both(x.sort(dim=1, stable=True, descending=True)))),
        fixed(lambda x: both(x.sort(dim=0, stable=True)), torch.randint(0, 3, (20, 2))),
    ],
    "argsort_by_rank": [exact(lambda x: torch.ops.aten.argsort.default(x, 1, True))],
    "stable_sort_by_topk": [
        fixed(lambda x: both(x.sort(dim=0, stable=True)), R(5, 3)),
        fixed(lambda x: x.sort(dim=1, stable=True, descending=True)[0], WHOLE),
        fixed(lambda x: both(x.sort(dim=0, stable=True)), torch.tensor(3.0), unchanged=True),
    ],
    "argsort_by_topk": [fixed(lambda x: torch.ops.aten.argsort.default(x, 0, True), R(5, 3))],
    "stable_argsort_by_topk": [fixed(lambda x: torch.argsort(x, dim=1, stable=True), R(5, 9))],
    "cumprod_by_doubling": [
        Case(
            function=lambda x: (x.cumprod(1), x.cumprod(-1, dtype=torch.float64)),
            inputs=(*((R(n, 9),) for n in (2, 1, 7)),),
            dynamic=batch(),
        ),
        Case(function=lambda x: x.cumprod(0), inputs=((torch.tensor([2.0, -1.0, INF, -0.5, NAN, 0.0]),), (R(6),))),
        fixed(lambda x: (x.cumprod(1), x.int().cumprod(0), (x > 0).cumprod(1)), WHOLE),
        fixed(lambda x: x.cumprod(0) * 1, R(1)),
        Case(
            function=lambda x: x.cumprod(0),
            inputs=((R(5),), (R(9),)),
            dynamic=({0: Dim("n", min=2, max=9)},),
            unchanged=True,
        ),
    ],
    "var_of_all": _of_all(torch.var),
    "std_of_all": _of_all(torch.std),
    "var_mean_of_all": _of_all(torch.var_mean),
    "std_mean_of_all": _of_all(torch.std_mean),
    "var_any_correction": [
        Case(
            function=lambda x: (x.var(1, correction=2), x.var((0, 1), correction=0.5, keepdim=True)),
            inputs=(*((R(n, 5),) for n in (2, 1, 7)),),
            dynamic=batch(),
        ),
        Case(
            function=lambda x: (x.var(correction=3), x.var(0, correction=9), x.var(0, correction=4)),
            inputs=((R(4, 2),),),
        ),
        Case(function=lambda x: (x - x).var(0, correction=4), inputs=((R(4, 2),),)),
        Case(
            function=lambda x: x.var(0, correction=2),
            inputs=(*((R(n, 3),) for n in (5, 2, 1, 16)),),
            dynamic=batch(),
        ),
        Case(function=lambda x: (x.var(), x.var(1, correction=0)), inputs=((R(4, 2),),), unchanged=True),
    ],
    "std_any_correction": [
        Case(
            function=lambda x: (x.std(1, correction=2), x.std(correction=0.5)),
            inputs=(*((R(n, 5),) for n in (2, 1, 7)),),
            dynamic=batch(),
        ),
        Case(function=lambda x: x.std(), inputs=((R(4, 2),),), unchanged=True),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)
