"""Rewrites for runtimes that lose digits: integers beyond 2**24, infinities, small logarithms. Same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from build.legalize import legalize
from build.legalize.bounds import Bounds
from build.program import op_name
from tests.legalize_support import Case, check, export

torch.manual_seed(0)
INF, NAN = float("inf"), float("nan")
R = torch.randn

#: numbers around 2**24, up to the ends of 32 bits, and ties.
BIG = torch.cat(
    [
        torch.randint(2**24 - 9, 2**24 + 9, (3, 8)),
        torch.randint(-(2**31), 2**31, (3, 8)),
        torch.tensor([[2**31 - 1, -(2**31), 0, -1, 1, 2**24 + 1, 2**24 + 1, -(2**24) - 1]]),
    ]
)
OTHER = torch.where(torch.rand(7, 8) < 0.3, BIG, BIG.roll(1, 1) + torch.randint(-2, 3, (7, 8)))
HARD = torch.tensor([[-INF, -INF, -INF], [INF, INF, INF], [-INF, 1.0, 2.0], [NAN, -INF, INF], [NAN] * 3, [-3.4e38] * 3])
LOGITS = torch.tensor(
    [-INF, -1e30, -200.0, -88.0, -20.0, -1.0, -1e-8, 0.0, 1e-8, 0.04, 0.06, 3.0, 20.0, 89.0, 1e30, INF]
)
WITH_NAN = torch.cat([LOGITS, torch.tensor([NAN])])
APART = torch.tensor([[-1e30, -200.0, 0.0, 3.0, 500.0], [1e4, -1e4, -INF, -INF, 2.0], [-INF, -INF, 1.0, INF, INF]])


def rows(*tables: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], ...]:
    return tuple(tuple(t[:n] for t in tables) for n in (7, 1, 4))


def equal(function: Any, *tables: torch.Tensor, **more: Any) -> Case:
    dynamic = tuple({0: Dim("n", min=1, max=16)} for _ in tables)
    return Case(function=function, inputs=rows(*tables), dynamic=dynamic, rtol=0, atol=0, **more)


def near(function: Any, *inputs: torch.Tensor, **more: Any) -> Case:
    return Case(function=function, inputs=(inputs,), rtol=2e-6, atol=0, **more)


def extreme(function: Any) -> Case:
    """NaN, infinities, rows of nothing else, and the finite number next to them."""
    inputs = ((HARD,), (HARD[:1],), (HARD[1:2],), (HARD[2:3],))
    return Case(function=function, inputs=inputs, dynamic=({0: Dim("n", min=1, max=9)},), rtol=0, atol=0)


CASES: dict[str, list[Case]] = {
    "exact_integers": [
        equal(lambda t: (t.amax(1), t.amin((0, 1)), t.amax(-1, keepdim=True), t.max(), t.min()), BIG),
        equal(lambda t: (t.max(1)[0], t.max(1)[1], t.min(0, keepdim=True)[0]), BIG),
        equal(lambda t: (t.sum(), t.sum(1), t.sum((0, 1)), t.sum(-1, keepdim=True), t.int().sum(1)), BIG),
        equal(lambda a, b: (a == b, a != b, a < b, a <= b, a > b, a >= b), BIG, OTHER),
        equal(lambda t: (t == 2**24 + 1, t < 2**24 + 1, t >= -(2**24) - 1), BIG),
        equal(lambda a, b: (torch.where(a > b, a, b), torch.where(a < 0, 5, b), a.masked_fill(b > 0, -7)), BIG, OTHER),
        equal(lambda a, b: (a.clamp(-(2**24) - 1, 2**24 + 3), a.clamp(max=5), a.clamp(min=b), a.relu()), BIG, OTHER),
        equal(lambda t: (torch.div(t, 3, rounding_mode="trunc"), torch.fmod(t, 16777213), torch.fmod(t, -7)), BIG),
        equal(lambda a, b: torch.div(a, b + (b == 0), rounding_mode="trunc"), BIG, OTHER),
        equal(lambda t: (F.pad(t, (1, 2), value=2**24 + 1), (t % 1000) ** 3), BIG),
        equal(lambda t: (t.int().amax(1), t.int() == 2**24 + 1), BIG),
    ],
    "aminmax_by_parts": [
        Case(function=lambda x: tuple(x.aminmax(dim=1)), inputs=((HARD,),), rtol=0, atol=0),
        Case(function=lambda x: tuple(x.aminmax()), inputs=((BIG,),), rtol=0, atol=0),
    ],
    "max_dim_unbounded": [extreme(lambda x: (*x.max(1), *x.max(-1, keepdim=True)))],
    "min_dim_unbounded": [extreme(lambda x: (*x.min(1), *x.min(-1, keepdim=True)))],
    "max_all_unbounded": [extreme(torch.max)],
    "min_all_unbounded": [extreme(torch.min)],
    "amax_unbounded": [extreme(lambda x: (x.amax(1), x.amax((0, 1)), x.amax(-1, keepdim=True)))],
    "amin_unbounded": [extreme(lambda x: (x.amin(1), x.amin((0, 1)), x.amin(-1, keepdim=True)))],
    "pooled_infinities": [
        Case(
            function=lambda x: (F.max_pool2d(x.masked_fill(x < 0.5, -INF), 2), F.max_pool1d(x[0], 3, 2, 1)),
            inputs=((R(2, 1, 6, 6),), (torch.full((3, 1, 6, 6), -INF),)),
            dynamic=({0: Dim("n", min=1, max=9)},),
            rtol=0,
            atol=0,
        )
    ],
    "log_sigmoid_with_nan": [near(F.logsigmoid, WITH_NAN)],
    "log_sigmoid_forward_with_nan": [near(lambda x: torch.ops.aten.log_sigmoid_forward(x)[0], WITH_NAN)],
    "softplus_by_log1p": [
        near(F.softplus, WITH_NAN),
        near(lambda x: (F.softplus(x, 2, 1), F.softplus(x, 0.5, -3)), LOGITS[1:-1]),
    ],
    "log1p_near_zero": [near(torch.log1p, WITH_NAN.abs()), near(torch.log1p, torch.linspace(-0.99, 0.2, 99))],
    "expm1_near_zero": [near(torch.expm1, torch.cat([WITH_NAN, torch.linspace(-0.1, 0.1, 99)]))],
    "bce_with_logits_written_out": [
        Case(
            function=lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
            inputs=((LOGITS[1:-1], torch.rand(14)),),
        )
    ],
    "logaddexp_shifted": [near(torch.logaddexp, APART, APART.roll(1, 1)), near(torch.logaddexp, WITH_NAN, WITH_NAN)],
    "logaddexp2_shifted": [near(torch.logaddexp2, APART, APART.roll(1, 1))],
    "logcumsumexp_by_doubling": [
        near(lambda x: (x.logcumsumexp(1), x.logcumsumexp(0)), APART[:2]),
        Case(function=lambda x: x.logcumsumexp(-1), inputs=((R(3, 7),),)),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x > 0).sum(1),
        lambda x: (x > 0).to(torch.int64).sum((0, 1)),
        lambda x: x.argmax(1) == x.argmin(1),
        lambda x: torch.where(x > 0, torch.arange(3), 5).amax(1),
        lambda x: (x.argmax(1) + 7) // 2,
        lambda x: x.argmax(1).clamp(0, 2),
        lambda x: x.to(torch.uint8).to(torch.int64).sum(1),
        lambda x: x.to(torch.int64) == 7,
        lambda x: x.sum(1),
    ],
)
def test_small_integers_are_left_alone(function: Any) -> None:
    program = export(Case(function=function, inputs=((R(4, 3),),)))
    before = [op_name(n) for n in program.graph.nodes]
    assert [op_name(n) for n in legalize(program, ["exact_integers"]).graph.nodes] == before


def test_bounds_follow_the_graph() -> None:
    def model(x: torch.Tensor, t: torch.Tensor) -> Any:
        places = x.argmax(1)
        return places * 3 + 1, t, t % 10, t & 255, t.clamp(-2, 6), (x > 0).sum(1), torch.cat([places, -places])

    dynamic = ({0: Dim("n", min=1, max=9)}, None)
    program = export(Case(function=model, inputs=((R(4, 5), torch.arange(6)),), dynamic=dynamic))
    bounds = Bounds(program)
    found = [bounds.of(node) for node in program.graph.output_node().args[0]]
    assert found == [(1, 13), None, (0, 9), (0, 255), (-2, 6), (0, 5), (-4, 4)]
