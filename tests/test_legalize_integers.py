"""Rewrites of bitwise ops, shifts, small integers and scatters keep the program's meaning, negatives included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

from tests.legalize_support import Case, check

R = torch.randn
torch.manual_seed(0)
aten = torch.ops.aten

WHOLE = torch.tensor([[5, -12, 7, -1], [0, 255, -6, 2**40]])
FLAGS = torch.tensor([[True, False, True], [False, False, True]])
BYTES = torch.tensor([0, 1, 127, 128, 200, 255], dtype=torch.uint8)
SIGNED = torch.tensor([-128, -127, -7, -1, 0, 1, 6, 127], dtype=torch.int8)
INT32 = torch.tensor([-(2**31), -(2**31) + 1, -9, -8, -1, 0, 1, 8, 2**31 - 1], dtype=torch.int32)
INT64 = torch.tensor([-(2**63), -(2**62), -9, -1, 0, 1, 2**62, 2**63 - 1])
ALL_INTEGERS = (BYTES, SIGNED, SIGNED.to(torch.int16), INT32, INT64)


def equal(function: Any, *inputs: torch.Tensor, **more: Any) -> Case:
    return Case(function=function, inputs=(inputs,), rtol=0, atol=0, **more)


def _bitwise(name: str) -> list[Case]:
    scalar = getattr(aten, f"bitwise_{name}").Scalar
    operator = getattr(aten, f"__{name}__").Scalar
    return [
        Case(
            function=lambda x: (scalar(x, 6), operator(x, -3)),
            inputs=tuple((torch.randint(-99, 99, (n, 3)),) for n in (2, 1, 7)),
            dynamic=({0: Dim("n", min=1, max=16)},),
            rtol=0,
            atol=0,
        ),
        equal(lambda x: (scalar(x, 6), scalar(x, True)), WHOLE),
        equal(lambda x: scalar(x, 5), SIGNED),
        equal(lambda x: (scalar(x, True), scalar(x, 6)), FLAGS),
    ]


def _shifts(shift: Any, amounts: dict[torch.dtype, tuple[int, ...]]) -> list[Case]:
    def over(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(shift(x, n) for n in amounts[x.dtype])

    return [equal(over, x) for x in ALL_INTEGERS]


AMOUNTS: dict[torch.dtype, tuple[int, ...]] = {
    torch.uint8: (0, 1, 3, 7),
    torch.int8: (0, 1, 3, 6, 7),
    torch.int16: (0, 1, 3, 14, 15),
    torch.int32: (0, 1, 3, 30, 31),
    torch.int64: (0, 1, 3, 31, 61, 62),
}


def _compare(name: str) -> list[Case]:
    compare = getattr(torch, name)
    wide = SIGNED.to(torch.int16) * 200
    return [
        Case(
            function=lambda x: (compare(x, 0), compare(x, 100)),
            inputs=tuple((torch.randint(0, 255, (n, 3)).to(torch.uint8),) for n in (2, 1, 7)),
            dynamic=({0: Dim("n", min=1, max=16)},),
        ),
        equal(compare, BYTES, BYTES.flip(0)),
        equal(compare, SIGNED, wide),
        equal(lambda x: compare(x, -1.5), SIGNED),
        equal(compare, INT32, INT32.flip(0), unchanged=True),
    ]


CASES: dict[str, list[Case]] = {
    "bitwise_and_tensors": _bitwise("and"),
    "bitwise_or_tensors": _bitwise("or"),
    "bitwise_xor_tensors": _bitwise("xor"),
    "left_shift_by_product": [
        *_shifts(lambda x, n: x << n, AMOUNTS),
        *_shifts(aten.bitwise_left_shift.Tensor_Scalar, AMOUNTS),
        equal(lambda x: x << 63, INT64, unchanged=True),
    ],
    "right_shift_by_division": [
        *_shifts(lambda x, n: x >> n, AMOUNTS),
        *_shifts(aten.bitwise_right_shift.Tensor_Scalar, AMOUNTS),
        equal(lambda x: x >> 40, INT32),
        equal(lambda x: x >> 8, BYTES),
    ],
    "eq_of_small_integers": _compare("eq"),
    "ne_of_small_integers": _compare("ne"),
    "lt_of_small_integers": _compare("lt"),
    "le_of_small_integers": _compare("le"),
    "gt_of_small_integers": _compare("gt"),
    "ge_of_small_integers": _compare("ge"),
    "scatter_as_reduce": [
        Case(
            function=lambda x, i, s: (x.scatter(1, i, s, reduce="add"), x.scatter(-1, i, s, reduce="multiply")),
            inputs=tuple((R(n, 5), torch.randint(0, 5, (n, 8)), R(n, 8)) for n in (2, 1, 7)),
            dynamic=tuple({0: Dim("n", min=1, max=16)} for _ in range(3)),
        ),
        Case(
            function=lambda x, i, s: x.scatter(0, i, s, reduce="multiply"),
            inputs=((torch.arange(12).reshape(4, 3), torch.randint(0, 4, (2, 3)), torch.arange(6).reshape(2, 3) - 3),),
        ),
    ],
    "scatter_mean_by_sum": [
        Case(
            function=lambda x, i, s: (
                x.scatter_reduce(1, i, s, "mean"),
                x.scatter_reduce(-1, i, s, "mean", include_self=False),
            ),
            inputs=tuple((R(n, 5), torch.randint(0, 5, (n, 8)), R(n, 8)) for n in (2, 1, 7)),
            dynamic=tuple({0: Dim("n", min=1, max=16)} for _ in range(3)),
        ),
        Case(
            function=lambda x, i, s: (
                x.scatter_reduce(0, i, s, "mean"),
                x.scatter_reduce(0, i, s, "mean", include_self=False),
            ),
            inputs=((torch.arange(12).reshape(4, 3), torch.randint(0, 4, (6, 3)), torch.arange(18).reshape(6, 3) - 9),),
        ),
        Case(
            function=lambda x, i, s: x.scatter_reduce(1, i, s, "amax"),
            inputs=((R(2, 5), torch.randint(0, 5, (2, 8)), R(2, 8)),),
            unchanged=True,
        ),
    ],
    "scatter_value_as_reduce": [
        Case(
            function=lambda x, i: (x.scatter(1, i, 2.5, reduce="add"), x.scatter(1, i, -3, reduce="multiply")),
            inputs=tuple((R(n, 5), torch.randint(0, 5, (n, 8))) for n in (2, 1, 7)),
            dynamic=tuple({0: Dim("n", min=1, max=16)} for _ in range(2)),
        ),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)
