"""OpenVINO on what it computed quietly otherwise, or had no op for: narrow integers, NaN, spreads, rarer ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from build.errors import LoweringError
from targets import openvino
from tests.lowering_support import check, lowered, program_of
from tests.test_legalize_narrow import PAIRS, WIDE, X, Y

pytestmark = pytest.mark.slow

R = torch.randn
NARROW: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda x, y: (x + y, x - y, -x, x.abs(), 5 - x, x + 1000),
    "products": lambda x, y: (x * y, x * 2, x**2, x**5),
    "chains": lambda x, y: ((x + y).to(torch.int32), (x * y) // 3, (x + y) > 0, (x - y).float() / 2),
    "quotients": lambda x, y: (torch.div(x, y, rounding_mode="trunc"), x // y, x % y, torch.fmod(x, y)),
    "by numbers": lambda x, y: (torch.div(x, 3, rounding_mode="trunc"), x // 7, x % 7, torch.fmod(x, 7)),
    "shifts": lambda x, y: (x << 1, x << 7, x >> 1, x >> 3),
    "bits": lambda x, y: (x & y, x | y, x ^ y, ~x),
    "totals": lambda x, y: (x.sum(0), x.sum(1, dtype=x.dtype), x.amax(1), x.to(torch.int32).sum()),
    "accumulated": lambda x, y: x.index_put((torch.zeros(3, dtype=torch.int64),), y, accumulate=True),
    "matrices": lambda x, y: x @ y.T,
}


@pytest.mark.parametrize("pair", PAIRS, ids=("int8", "uint8", "int16"))
@pytest.mark.parametrize("name", NARROW)
def test_narrow_integers_wrap_around(tmp_path: Path, name: str, pair: tuple[Any, Any]) -> None:
    rows = [tuple(t.roll(n).expand(n, 10).clone() for t in pair) for n in (3, 1, 8)]
    if name == "accumulated":
        rows = rows[:1]
    dynamic = None if name == "accumulated" else ({0: torch.export.Dim("n", min=1, max=8)},) * 2
    program = program_of(NARROW[name], rows[0], tmp_path, dynamic)
    if name == "matrices" and pair is PAIRS[2]:
        with pytest.raises(LoweringError, match="int16 results"):
            lowered(openvino, program, tmp_path / "a")
        return
    check(lowered(openvino, program, tmp_path / "a"), [list(r) for r in rows], 0)


def test_casts_to_narrow_integers_cut_bits(tmp_path: Path) -> None:
    def casts(x: Any) -> Any:
        small = (x.to(torch.int16), x.to(torch.int8), x.to(torch.uint8))
        return *small, *(s.to(torch.int32) + 1 for s in small), small[0] > 0

    check(lowered(openvino, program_of(casts, (WIDE,), tmp_path), tmp_path / "a"), [[WIDE]], 0)


def test_products_that_cannot_wrap_are_refused(tmp_path: Path) -> None:
    program = program_of(lambda x, y: x.pow(y % 4), PAIRS[1], tmp_path)
    with pytest.raises(LoweringError, match="does not let uint8 results") as caught:
        lowered(openvino, program, tmp_path / "a")
    assert caught.value.op == "aten.pow.Tensor_Tensor"
    assert "forward" in str(caught.value.source)


NAN_CASES: dict[str, Callable[[Any, Any], Any]] = {
    "tensors": lambda x, y: (x > y, x >= y, x < y, x <= y, x == y, x != y, ~(x >= y)),
    "numbers": lambda x, y: (x > 1.0, x >= 0, y < 1.0, y >= 0, (x > 0).float() * 2),
    "selects": lambda x, y: (torch.where(x > y, 1.0, 2.0), torch.where(x >= 1, x, y), (x > y).sum(-1)),
    "signs": lambda x, y: (torch.sign(x), torch.sgn(y)),
    "places": lambda x, y: (
        torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
        torch.bucketize(y, torch.tensor([0.0, 2.0]), out_int32=True, right=True),
    ),
}


@pytest.mark.parametrize("name", NAN_CASES)
def test_comparisons_with_nan_are_false(tmp_path: Path, name: str) -> None:
    rows = [[t.repeat(n, 3) for t in (X, Y)] for n in (2, 1, 5)]
    dynamic = ({0: torch.export.Dim("n", min=1, max=8)},) * 2
    made = lowered(openvino, program_of(NAN_CASES[name], tuple(rows[0]), tmp_path, dynamic), tmp_path / "a")
    check(made, rows, 0)


def test_spread_of_everything(tmp_path: Path) -> None:
    def spreads(x: Any) -> Any:
        plain = (x.var(), x.std(), x.var(unbiased=False), x.std(correction=3))
        return *plain, x.var((0, 1)), torch.var_mean(x)[0], torch.std(x, None, keepdim=True), x.var(1)

    rows = [[R(n, 5)] for n in (3, 2, 8)]
    dynamic = ({0: torch.export.Dim("n", min=2, max=8)},)
    check(lowered(openvino, program_of(spreads, tuple(rows[0]), tmp_path, dynamic), tmp_path / "a"), rows, 1e-5)


INTEGERS = torch.randint(-5, 6, (3, 4), dtype=torch.int32)
SOURCES = torch.tensor([[float("nan"), 1.0, -2.0], [float("-inf"), float("-inf"), 3.0]])
INDEX = torch.tensor([[0, 0, 2], [1, 1, 1]])
PLACES = torch.tensor([0, 2, 2])


def _scattered(x: Any, i: Any, s: Any) -> list[Any]:
    kinds = ("sum", "prod", "amax", "amin", "mean") if x.is_floating_point() else ("sum", "amax", "amin")
    return [x.scatter_reduce(1, i, s, kind, include_self=own) for kind in kinds for own in (True, False)]


#: function and inputs.
RARER: dict[str, tuple[Any, ...]] = {
    "powers": (lambda x: (torch.exp2(x), torch.ldexp(x, torch.tensor(2))), R(3, 6)),
    "hypot": (torch.hypot, X, Y),
    "copysign": (lambda x, y: (torch.copysign(x, y[2:]), torch.copysign(x, -2.0)), X[:6], Y),
    "without NaN": (lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)), X, Y),
    "shifts": (lambda x, n: (x << n, x >> n), INTEGERS * 2**20, INTEGERS.abs() * 6),
    "windows": (lambda x: (x.unfold(1, 4, 3), x.unfold(0, 2, 1)), R(3, 11)),
    "gcd": (lambda x: (torch.gcd(x, torch.tensor(6, dtype=torch.int32)), torch.gcd(x, x.flip(1))), INTEGERS),
    "running sums": (lambda x: (x.cumsum(0), (x > 0).cumsum(1), x.to(torch.int8).cumsum(1)), INTEGERS),
    "products": (lambda x: (x.prod(1), (x > -9).prod(), x.to(torch.int16).prod(0)), INTEGERS),
    "running extremes": (lambda x, y: (*x.cummax(1), *x.cummin(0), *y.cummax(0)), R(3, 5), X),
    "running logarithms": (lambda x: torch.logcumsumexp(x, 1), R(3, 5) * 50),
    "kthvalue": (lambda x: tuple(torch.kthvalue(x, 2, 1)), R(3, 5)),
    "medians": (lambda x: (x.median(), x.nanmedian(), *x.nanmedian(1)), R(3, 5)),
    "median of numbers": (lambda x: x.nanmedian(1)[0], SOURCES),
    "searchsorted": (lambda r, x: (torch.searchsorted(r, x), torch.searchsorted(r, x, right=True)), R(6).sort()[0], X),
    "norms": (lambda x: (x.norm(), x.norm(1), torch.linalg.vector_norm(x, 3, keepdim=True), x.norm(0)), R(3, 5)),
    "scatter": (_scattered, R(2, 4), INDEX, SOURCES),
    "scatter of integers": (_scattered, torch.randint(-9, 9, (2, 4)), INDEX, torch.randint(-(2**30), 2**30, (2, 3))),
    "index_add": (lambda x, s: x.index_add(1, PLACES, s, alpha=2), R(3, 6), R(3, 3)),
    "bilinear": (torch.nn.Bilinear(3, 4, 5), R(2, 3), R(2, 4)),
    "cross": (lambda x: (torch.linalg.cross(x, x.flip(1)), torch.cross(x, x.roll(1, 0), dim=1)), R(2, 3, 3)),
    "diagonals": (lambda x: (torch.einsum("bii->bi", x), torch.einsum("bii->b", x)), R(2, 4, 4)),
    "one tensor often": (lambda x: (lambda y: (y, y, x, x, y.detach(), y.view(-1)))(x.relu()), R(3, 5)),
    "lowest of integers": (
        lambda x: (torch.where(x > 0, x, -(2**31)), x.masked_fill(x > 0, -(2**31)).amax(1)),
        torch.tensor([[2**30 + 1, -7, 2**30 + 3], [-1, 5, 2**31 - 1]]),
    ),
}


@pytest.mark.parametrize("name", RARER)
def test_rarer_ops(tmp_path: Path, name: str) -> None:
    function, *inputs = RARER[name]
    made = lowered(openvino, program_of(function, tuple(inputs), tmp_path), tmp_path / "a")
    check(made, [list(inputs)], 2e-6)
