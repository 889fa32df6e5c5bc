"""Rewrites for infinity and NaN keep the program's meaning, at every hard value."""

from __future__ import annotations

import pytest
import torch

from build.legalize import legalize
from tests.legalize_support import Case, check, export

INF, NAN = float("inf"), float("nan")
HARD = torch.tensor([[-INF, INF, NAN, 0.0, -0.0, 1.0], [-1.0, 1e30, 1e-30, 88.0, 0.25, 3.4e38]])
WHOLE = torch.tensor([[5, 1, 7], [2, 255, 6]])
BOUND = torch.tensor(INF)


def case(function: object, *inputs: torch.Tensor, **more: object) -> Case:
    return Case(function=function, inputs=(inputs or (HARD,),), rtol=1e-6, atol=1e-7, **more)  # type: ignore[arg-type]


CASES: dict[str, list[Case]] = {
    "log_of_infinity": [case(torch.log), case(torch.log, HARD.double(), unchanged=True)],
    "log2_of_infinity": [case(torch.log2)],
    "log10_of_infinity": [case(torch.log10)],
    "log1p_of_infinity": [case(torch.log1p)],
    "logit_of_one": [
        case(torch.logit, torch.tensor([0.0, 0.25, 0.5, 1.0, 2.0, NAN])),
        case(lambda x: torch.logit(x, 0.1), unchanged=True),
    ],
    "floor_division_by_zero": [
        case(lambda x, y: (x // y, torch.div(x, y, rounding_mode="floor")), HARD.T.expand(6, 2), HARD[:1].T),
        case(lambda x: (x // 3.0, torch.div(x, x + 9, rounding_mode="trunc")), unchanged=True),
        case(lambda x: x // (x + 1), WHOLE, unchanged=True),
    ],
    "rsqrt_by_sqrt": [case(torch.rsqrt), case(torch.rsqrt, WHOLE, unchanged=True)],
    "whole_power_by_products": [
        case(lambda x: (x**3, x**4.0, x**5, x**6, x**7, x**8)),
        case(lambda x: (x**2, x**9, x**2.5, x**-3), unchanged=True),
        case(lambda x: x**3, WHOLE, unchanged=True),
    ],
    "infinite_norm_by_extreme": [
        case(lambda x: torch.linalg.vector_norm(x, INF, 1)),
        case(lambda x: torch.linalg.vector_norm(x, -INF, keepdim=True)),
        case(lambda x: torch.linalg.vector_norm(x, 2, 1), unchanged=True),
    ],
    "aminmax_by_both": [case(lambda x: tuple(torch.aminmax(x, dim=1))), case(lambda x: tuple(torch.aminmax(x)))],
    "infinite_bounds_dropped": [
        case(lambda x: (torch.minimum(x, BOUND), torch.maximum(torch.full_like(x, -INF), x) * 2)),
        case(lambda x: (torch.maximum(x, BOUND), torch.minimum(x, torch.tensor(1.0)))),
        case(lambda x: torch.minimum(x[0], torch.full((2, 6), INF))),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)


def test_only_bounds_that_bound_nothing_are_dropped() -> None:
    def bounds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.minimum(x, BOUND), torch.maximum(x, BOUND)

    legal = legalize(export(case(bounds)), ["infinite_bounds_dropped"])
    kept = [str(n.target) for n in legal.graph.nodes if "imum" in str(n.target)]
    assert kept == ["aten.maximum.default"]
