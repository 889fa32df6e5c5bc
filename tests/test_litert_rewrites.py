"""The rewrites that only LiteRT needs keep the meaning of the program."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from build.legalize import legalize
from build.program import op_name, op_nodes, signature_of
from targets import litert
from tests.lowering_support import check, lowered, program_of


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _rewritten(function: Callable[..., Any], args: tuple[Any, ...], name: str, op: str) -> tuple[Any, Any]:
    """Outputs before and after the rewrite ``name``, which must have removed ``op``."""
    program = torch.export.export(_Function(function), args)
    assert any(str(n.target) == op for n in program.graph.nodes), f"{op} is not in the program"
    legal = legalize(program, [name])
    assert not any(str(n.target) == op for n in legal.graph.nodes)
    return function(*args), legal.module()(*args)


def _same(wanted: Any, got: Any) -> None:
    pair = [v if isinstance(v, tuple) else (v,) for v in (wanted, got)]
    for a, b in zip(*pair, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6, equal_nan=True)


TIES = torch.tensor([[3.0, 1.0, 3.0, -2.0, 1.0], [0.0, 0.0, 7.0, 7.0, -1.0]])
SMALLEST = torch.tensor([[-(2**31), 5, 2**31 - 1, 5, 0]], dtype=torch.int32)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("x", [TIES, SMALLEST], ids=["floats with ties", "extreme integers"])
def test_sort_is_stable_and_survives_the_smallest_integer(x: torch.Tensor, descending: bool) -> None:
    wanted, got = _rewritten(
        lambda t: tuple(torch.sort(t, -1, descending=descending)), (x,), "sort_by_topk", "aten.sort.default"
    )
    torch.testing.assert_close(got[0], wanted[0])
    torch.testing.assert_close(x.gather(-1, got[1]), wanted[0])


def test_flags_are_sorted_as_numbers() -> None:
    flags = TIES > 0.5
    wanted, got = _rewritten(lambda t: tuple(torch.sort(t, -1)), (flags,), "sort_by_topk", "aten.sort.default")
    assert torch.equal(got[0], wanted[0])
    assert torch.equal(flags.gather(-1, got[1]), wanted[0])  # which of equal ones comes first is the runtime's top-k's


def test_sort_along_another_dimension() -> None:
    wanted, got = _rewritten(lambda t: t.sort(0)[0], (torch.randn(4, 3),), "sort_by_topk", "aten.sort.default")
    _same(wanted, got)


@pytest.mark.parametrize(("dim", "largest"), [(0, True), (1, False), (0, False)])
def test_topk_in_every_direction(dim: int, largest: bool) -> None:
    x = torch.randn(5, 6)
    program = torch.export.export(_Function(lambda t: tuple(t.topk(3, dim, largest))), (x,))
    got = legalize(program, ["topk_last_largest"]).module()(x)
    _same(tuple(x.topk(3, dim, largest)), got)


@pytest.mark.parametrize("function", [lambda t: t.topk(3)[0], lambda t: t.sort(-1)[0] + 1], ids=["topk", "sort"])
def test_the_values_of_a_topk_whose_places_nobody_reads(function: Callable[..., Any], tmp_path: Path) -> None:
    program = torch.export.export(_Function(function), (TIES,))
    legal = legalize(program, ["sort_by_topk", "topk_values_by_place"])
    torch.testing.assert_close(legal.module()(TIES), function(TIES))
    assert signature_of(legal).outputs == signature_of(program).outputs
    made = lowered(litert, program_of(function, (TIES,), tmp_path), tmp_path / "out")
    check(made, [[TIES], [TIES.flip(-1)]], 0)


def test_scatter_add_with_repeated_and_missing_positions() -> None:
    base, src = torch.randn(4, 5), torch.randn(3, 6)
    index = torch.tensor([[0, 0, 4, 2, 2, 2], [1, 1, 1, 1, 1, 1], [3, 4, 0, 4, 3, 0]])
    wanted, got = _rewritten(
        lambda x, i, s: x.scatter_add(1, i, s),
        (base, index, src),
        "scatter_add_by_compare",
        "aten.scatter_add.default",
    )
    _same(wanted, got)


def test_scatter_add_along_the_first_dimension() -> None:
    base, src, index = torch.zeros(6, 3), torch.randn(4, 3), torch.randint(0, 6, (4, 3))
    wanted, got = _rewritten(
        lambda x, i, s: x.scatter_add(0, i, s),
        (base, index, src),
        "scatter_add_by_compare",
        "aten.scatter_add.default",
    )
    _same(wanted, got)


def test_accumulating_index_put_counts_negative_positions_from_the_end() -> None:
    x, index, values = torch.randn(5, 2), torch.tensor([0, -1, 0, 4]), torch.randn(4, 2)
    wanted, got = _rewritten(
        lambda t, i, v: t.index_put((i,), v, accumulate=True),
        (x, index, values),
        "index_put_by_compare",
        "aten.index_put.default",
    )
    _same(wanted, got)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "ceil"),
    [
        (2, 2, 0, 1, False),
        (3, 2, 1, 1, False),
        (3, 2, 1, 2, False),
        (2, 2, 0, 1, True),
        ((2, 3), (1, 2), (1, 1), 1, True),
    ],
)
def test_max_pool_positions(kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
    x = torch.randn(2, 3, 9, 7)
    wanted, got = _rewritten(
        lambda t: tuple(F.max_pool2d(t, kernel, stride, padding, dilation, ceil, return_indices=True)),
        (x,),
        "max_pool2d_indices_by_windows",
        "aten.max_pool2d_with_indices.default",
    )
    _same(wanted, got)


def test_a_row_masked_throughout_gives_zeros() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    wanted, got = _rewritten(
        lambda a, b, c, m: F.scaled_dot_product_attention(a, b, c, m),
        (q, k, v, mask),
        "masked_attention_by_matmul",
        "aten.scaled_dot_product_attention.default",
    )
    _same(wanted, got)
    assert not got[..., 2, :].any()


@pytest.mark.parametrize(
    ("padding", "extra", "stride", "groups", "dilation"),
    [(1, 1, 2, 1, 1), ((0, 2), 0, (1, 2), 2, 1), (0, 1, 2, 1, 1), (1, (0, 2), 3, 2, 2)],
)
def test_transposed_convolution_with_output_padding(
    padding: Any, extra: Any, stride: Any, groups: int, dilation: int
) -> None:
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose2d(4, 6, (3, 5), stride, padding, extra, groups, True, dilation)
    x = torch.randn(2, 4, 5, 6)
    program = torch.export.export(layer, (x,))
    got = legalize(program, ["transposed_convolution_cropped"]).module()(x)
    torch.testing.assert_close(got, layer(x), rtol=1e-5, atol=1e-5)


def test_assignment_through_a_mask() -> None:
    x, value = torch.randn(3, 4), torch.tensor(7.0)
    wanted, got = _rewritten(
        lambda t, v: t.index_put((t > 0,), v), (x, value), "index_put_by_compare", "aten.index_put.default"
    )
    _same(wanted, got)


def test_small_integers_are_summed_and_compared_without_overflow() -> None:
    x = torch.full((4, 100), 255, dtype=torch.uint8)
    program = torch.export.export(_Function(lambda t: (t.sum(), t.sum(1), t > 254)), (x,))
    legal = legalize(program, ["sum_of_small_integers", "sum_dim_of_small_integers", "gt_of_small_integers"])
    total, rows, above = legal.module()(x)
    assert (int(total), total.dtype) == (4 * 100 * 255, torch.int64)
    assert rows.tolist() == [100 * 255] * 4
    assert bool(above.all())


@pytest.mark.parametrize("shape", [(4,), (3, 5), (5, 2)])
def test_eye(shape: tuple[int, ...]) -> None:
    program = torch.export.export(_Function(lambda t: t + torch.eye(*shape)), (torch.zeros(1),))
    got = legalize(program, ["eye_by_compare", "eye_m_by_compare"]).module()(torch.zeros(1))
    _same(torch.eye(*shape), got)


@pytest.mark.parametrize("mask", [1, 7])
def test_low_bits_of_negative_integers(mask: int) -> None:
    x = torch.arange(-9, 9, dtype=torch.int8)
    program = torch.export.export(_Function(lambda t: t & mask), (x,))
    got = legalize(program, ["low_bits_by_remainder"])
    assert not any("and" in str(n.target) for n in got.graph.nodes)
    _same(x & mask, got.module()(x))


def test_integers_of_64_bits_and_booleans_without_kernels_of_their_own() -> None:
    x = torch.arange(-4, 5) * 2**40
    for name, function, op in (
        ("abs_of_wide_integers", torch.abs, "aten.abs.default"),
        ("not_of_wide_integers", torch.bitwise_not, "aten.bitwise_not.default"),
    ):
        wanted, got = _rewritten(function, (x,), name, op)
        _same(wanted, got)
        narrow = torch.export.export(_Function(function), (x.to(torch.int32),))
        assert op in {op_name(n) for n in op_nodes(legalize(narrow, [name]))}
    one, other = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for function, op in (
        (operator.xor, "aten.__xor__.Tensor"),
        (torch.bitwise_xor, "aten.bitwise_xor.Tensor"),
        (torch.logical_xor, "aten.logical_xor.default"),
    ):
        wanted, got = _rewritten(function, (one, other), "bool_xor_by_ne", op)
        _same(wanted, got)


def test_one_hot() -> None:
    x = torch.tensor([[0, 3], [5, 1]])
    wanted, got = _rewritten(lambda t: F.one_hot(t, 6), (x,), "one_hot_by_compare", "aten.one_hot.default")
    _same(wanted, got)
