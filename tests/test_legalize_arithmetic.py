"""Rewrites of arithmetic, division and comparisons keep the program's meaning."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from tests.legalize_support import Case, check

INF, NAN = float("inf"), float("nan")
R = torch.randn
torch.manual_seed(0)

SPECIAL = torch.tensor([-INF, -3.5, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, INF, NAN])
INTS = torch.tensor([-9, -8, -7, -1, 0, 1, 6, 7, 8, 9])
#: beyond 2**53: a round trip through any float loses it.
BIG = torch.tensor([2**62 + 1, -(2**62) - 1, 2**60 - 1, -(2**60) + 1, 9007199254740993])
EDGES = torch.tensor([1.0, 0.3, 0.7, -0.3, 6.0, -6.0, 1e-10, -1e-10, 5.5, -5.5, 0.9, 3e6, -3e6, 0.0, 7.0])
STEPS = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.2, 0.6, 1.0, 1.0, -2.0, 2.0, 0.3, 0.1, 0.7, 0.1, -7.0])
EXTREME = torch.tensor([INF, -INF, 5.0, -5.0, 5.0, 0.0, NAN, 1.0, -0.0])
DIVISOR = torch.tensor([2.0, 2.0, INF, INF, -INF, INF, 1.0, NAN, 2.0])
GRID = torch.arange(-60, 61, dtype=torch.float32) / 10

CASES: dict[str, list[Case]] = {
    "add_alpha": [
        Case(function=lambda x, y: torch.add(x, y, alpha=10), inputs=((R(4, 5), R(5)),)),
        Case(function=lambda x, y: torch.add(x, y, alpha=0.5), inputs=((R(4), INTS[:4]),)),
        Case(function=lambda x: torch.add(x, 3, alpha=-2), inputs=((INTS,),), rtol=0, atol=0),
        Case(function=lambda x, y: x + y, inputs=((R(4), R(4)),), unchanged=True),
    ],
    "sub_alpha": [Case(function=lambda x, y: torch.sub(x, y, alpha=10), inputs=((R(4, 5), R(4, 5)),))],
    "rsub_alpha": [
        Case(function=lambda x, y: torch.rsub(x, y, alpha=3), inputs=((R(4), R(4)),)),
        Case(function=lambda x: torch.rsub(x, 2), inputs=((INTS,),), rtol=0, atol=0),
        Case(function=lambda x: 2.5 - x, inputs=((INTS,),)),
    ],
    "reciprocal_by_division": [
        Case(function=torch.reciprocal, inputs=((torch.cat([SPECIAL, torch.tensor([1e-30, -1e-4])]),),)),
        Case(function=torch.reciprocal, inputs=((INTS,),)),
    ],
    "rsqrt_by_division": [
        Case(function=torch.rsqrt, inputs=((torch.cat([SPECIAL, torch.tensor([1e-30, 1e-12])]),),)),
        Case(function=torch.rsqrt, inputs=((INTS.abs(),),)),
    ],
    "clamp_one_sided": [
        Case(function=lambda x: (x.clamp(min=0.2), x.clamp(max=-0.1)), inputs=((SPECIAL,),), rtol=0, atol=0),
        Case(function=lambda x: (x.clamp(min=2), x.clamp(max=0.5)), inputs=((INTS,),), rtol=0, atol=0),
        Case(function=lambda x: x.clamp(-1, 1), inputs=((SPECIAL,),), unchanged=True),
    ],
    "clamp_tensor_bounds": [
        Case(function=lambda x, a, b: torch.clamp(x, a, b), inputs=((R(4, 5), R(5), R(5)),), rtol=0, atol=0),
        Case(function=lambda x, b: torch.clamp(x, max=b), inputs=((SPECIAL, SPECIAL.flip(0)),), rtol=0, atol=0),
    ],
    "lerp_scalar": [
        Case(function=lambda x, y: (x.lerp(y, 0.3), x.lerp(y, 0.8), x.lerp(y, 1.0)), inputs=((R(6), R(6)),))
    ],
    "trunc_by_floor": [
        Case(function=torch.trunc, inputs=((SPECIAL,),), rtol=0, atol=0),
        Case(function=torch.trunc, inputs=((INTS,),), rtol=0, atol=0),
    ],
    "frac_by_floor": [Case(function=torch.frac, inputs=((SPECIAL[1:-2],),))],
    "round_decimals": [
        Case(function=lambda x: (x.round(decimals=2), x.round(decimals=-1)), inputs=((R(50) * 100,),), rtol=0, atol=0),
        Case(function=lambda x: x.round(decimals=0), inputs=((SPECIAL,),), rtol=0, atol=0),
    ],
    "sgn_by_sign": [Case(function=torch.sgn, inputs=((SPECIAL,),))],
    "addcmul_by_product": [
        Case(function=lambda x, a, b: torch.addcmul(x, a, b, value=0.5), inputs=((R(6), R(6), R(6)),))
    ],
    "addcdiv_by_quotient": [
        Case(function=lambda x, a, b: torch.addcdiv(x, a, b, value=3), inputs=((R(6), R(6), R(6)),))
    ],
    "addmm_scaled": [
        Case(function=lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), inputs=((R(3), R(2, 4), R(4, 3)),)),
        Case(
            function=lambda b, x, y: torch.addmm(b, x, y, beta=0, alpha=2),
            inputs=((torch.full((3,), NAN), R(2, 4), R(4, 3)),),
        ),
        Case(function=torch.addmm, inputs=((R(3), R(2, 4), R(4, 3)),), unchanged=True),
    ],
    "baddbmm_scaled": [
        Case(
            function=lambda b, x, y: torch.baddbmm(b, x, y, beta=2, alpha=0.5),
            inputs=tuple((R(n, 2, 3), R(n, 2, 4), R(n, 4, 3)) for n in (2, 1, 7)),
            dynamic=tuple({0: Dim("n", min=1, max=8)} for _ in range(3)),
        )
    ],
    "float_floor_division": [
        Case(function=torch.floor_divide, inputs=((EDGES, STEPS),), rtol=0, atol=0),
        Case(
            function=lambda x, y: torch.div(x, y, rounding_mode="floor"), inputs=((EXTREME, DIVISOR),), rtol=0, atol=0
        ),
        Case(function=lambda x: (x // 0.1, x // -0.3, x // 3), inputs=((GRID,),), rtol=0, atol=0),
        Case(function=lambda x, y: x // y, inputs=((GRID.unsqueeze(1), GRID.unsqueeze(0)),), rtol=0, atol=0),
        Case(function=lambda x, y: x // y, inputs=((R(20000) * 50, R(20000)),), rtol=0, atol=0),
        Case(function=lambda x: x // 0.1, inputs=((INTS,),), rtol=0, atol=0),
        Case(function=lambda x, y: x // y, inputs=((INTS, INTS + 20),), unchanged=True),
    ],
    "int_division_by_floor": [
        Case(
            function=lambda x, y: (torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")),
            inputs=((torch.cat([INTS, INTS]), torch.tensor([3] * 10 + [-3] * 10)),),
            rtol=0,
            atol=0,
        ),
        Case(function=lambda x: torch.div(x, -7, rounding_mode="trunc"), inputs=((BIG,),), rtol=0, atol=0),
        Case(
            function=lambda x: torch.div(x, 2.0, rounding_mode="floor"),
            inputs=((R(4),),),
            rtol=0,
            atol=0,
            unchanged=True,
        ),
    ],
    "int_floor_division_by_trunc": [
        Case(
            function=torch.floor_divide,
            inputs=((torch.cat([INTS, INTS]), torch.tensor([3] * 10 + [-3] * 10)),),
            rtol=0,
            atol=0,
        ),
        Case(function=lambda x: (x // 7, x // -7), inputs=((BIG,),), rtol=0, atol=0),
        Case(function=lambda x: x // -3, inputs=((INTS.to(torch.int32),),), rtol=0, atol=0),
    ],
    "float_trunc_division": [
        Case(function=lambda x, y: torch.div(x, y, rounding_mode="trunc"), inputs=((EDGES, STEPS),), rtol=0, atol=0),
        Case(
            function=lambda x, y: torch.div(x, y, rounding_mode="trunc"), inputs=((EXTREME, DIVISOR),), rtol=0, atol=0
        ),
    ],
    "fmod_by_remainder": [
        Case(function=torch.fmod, inputs=((EDGES, STEPS),), rtol=0, atol=0),
        Case(function=lambda x: torch.fmod(x, -3), inputs=((INTS,),), rtol=0, atol=0),
        Case(function=torch.fmod, inputs=((EXTREME, DIVISOR),), rtol=0, atol=0),
    ],
    "float_remainder_by_fmod": [
        Case(function=torch.remainder, inputs=((EDGES, STEPS),), rtol=0, atol=0),
        Case(function=torch.remainder, inputs=((EXTREME, DIVISOR),), rtol=0, atol=0),
        Case(function=lambda x: x % -0.3, inputs=((GRID,),), rtol=0, atol=0),
        Case(function=lambda x: x % 3, inputs=((INTS,),), unchanged=True),
    ],
    "int_remainder_by_trunc": [
        Case(function=lambda x: (x % 3, x % -3), inputs=((INTS,),), rtol=0, atol=0),
        Case(function=torch.remainder, inputs=((BIG, torch.tensor([7, 7, -7, -7, 10])),), rtol=0, atol=0),
    ],
    "isinf_by_compare": [
        Case(function=torch.isinf, inputs=((SPECIAL,),)),
        Case(function=torch.isinf, inputs=((INTS,),)),
    ],
    "isnan_by_compare": [Case(function=torch.isnan, inputs=((SPECIAL,),))],
    "isfinite_by_compare": [Case(function=torch.isfinite, inputs=((SPECIAL,),))],
    "isclose_by_compare": [
        Case(function=torch.isclose, inputs=((SPECIAL, SPECIAL),)),
        Case(
            function=torch.isclose, inputs=((torch.tensor([INF, 1.0, -INF, 1.0]), torch.tensor([1.0, INF, INF, 1.0])),)
        ),
        Case(function=lambda x, y: torch.isclose(x, y, atol=0.1, equal_nan=True), inputs=((SPECIAL, SPECIAL + 0.05),)),
        Case(function=lambda x, y: torch.isclose(x, y, rtol=0.3), inputs=((INTS, INTS + 1),)),
    ],
    "cast_to_bool": [
        Case(function=lambda x: (x.bool(), x.to(torch.bool)), inputs=((SPECIAL,),)),
        Case(function=lambda x: x.bool(), inputs=((INTS,),)),
        Case(function=lambda x: x.to(torch.float64), inputs=((INTS,),), unchanged=True),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)
