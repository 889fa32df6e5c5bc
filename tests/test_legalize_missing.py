"""Rewrites of ops that converters lack, or take for others: each gives what PyTorch gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from build.legalize import legalize
from tests.legalize_support import Case, check, export, tensors

torch.manual_seed(0)
R = torch.randn
NAN, INF = math.nan, math.inf
EDGES = torch.tensor([[NAN, INF, -INF, 0.0, -0.0, 4.0], [1.0, -2.0, NAN, 3.0, 0.5, -0.5]])
BATCH = ({0: Dim("b", min=1, max=9)},)
CLASSES = torch.tensor([0, 5, -100])
PAIR = (R(3, 6), R(3, 6))
W = R(4, 6, 5)


def tracked(norm: nn.Module) -> nn.Module:
    """With statistics that are not an input's own."""
    state = {k: torch.full_like(v, 0.3) for k, v in norm.state_dict().items()}
    norm.load_state_dict(state)
    return norm


def one(function: Any, x: torch.Tensor | None = None, **more: Any) -> Case:
    return Case(function=function, inputs=((R(3, 6) if x is None else x,),), **more)


def sizes(function: Any, **more: Any) -> Case:
    return Case(function=function, inputs=((R(3, 6),), (R(1, 6),), (R(9, 6),)), dynamic=BATCH, **more)


def two(function: Any, x: torch.Tensor, y: torch.Tensor, **more: Any) -> Case:
    return Case(function=function, inputs=((x, y),), **more)


EQUAL: list[tuple[str, Case]] = [
    ("var_correction_given", one(lambda x: torch.var(x, None, correction=3, keepdim=True), R(1, 2))),
    ("var_correction_given", one(lambda x: x.var(1, correction=1), unchanged=True)),
    ("std_correction_given", one(lambda x: torch.std(x, None, correction=3), R(1, 2))),
    (
        "instance_norm_of_running_statistics",
        one(tracked(nn.InstanceNorm2d(6, affine=True, track_running_stats=True)), R(2, 6, 3, 4)),
    ),
    (
        "instance_norm_of_running_statistics",
        one(tracked(nn.InstanceNorm1d(6, track_running_stats=True)), R(2, 6, 3)),
    ),
    ("instance_norm_of_running_statistics", one(nn.InstanceNorm2d(6), R(2, 6, 3, 4), unchanged=True)),
    ("where_of_full_size", sizes(lambda x: torch.where(x > 0, torch.tensor(1.0), torch.tensor(0.0)))),
    ("where_of_full_size", sizes(lambda x: torch.where(x[:, :1] > 0, torch.arange(6), torch.tensor(1)))),
    ("where_of_full_size", sizes(lambda x: torch.where(x > 0, x, x * 0), unchanged=True)),
    ("full_of_a_size", sizes(lambda x: torch.full([2], x.shape[0]) + torch.full([2], x.shape[0] / 2))),
    ("full_of_a_size", one(lambda x: x + torch.full([6], 2.0), unchanged=True)),
    *(
        (name, two(getattr(torch, name.removesuffix("_of_numbers")), x, y, rtol=0, atol=0))
        for name in ("logical_and_of_numbers", "logical_or_of_numbers", "logical_xor_of_numbers")
        for x, y in [(EDGES, EDGES.flip(1)), (EDGES > 0, EDGES.flip(1)), (torch.arange(-2, 2), torch.zeros(4))]
    ),
    ("logical_and_of_numbers", two(torch.logical_and, EDGES > 0, EDGES > 1, unchanged=True)),
    ("logical_not_of_numbers", one(torch.logical_not, EDGES)),
    *(
        (name, one(extremes, x))
        for name, extremes in (
            ("any_of_numbers", lambda x: (x.any(), x.any(1), x.any(0, True), torch.any(x, (0, 1)))),
            ("all_of_numbers", lambda x: (x.all(), x.all(1), x.all(0, True), torch.all(x, (0, 1)))),
        )
        for x in (EDGES, torch.tensor([[0.5, 0.0], [0.2, 0.1]]), torch.tensor([[-1, 0], [-3, -2]]))
    ),
    *(
        (name, two(function, x, x.flip(0), rtol=0, atol=0))
        for x in (
            torch.tensor([-128, 127, 100, -100, 0], dtype=torch.int8),
            torch.tensor([255, 200, 3, 100, 0], dtype=torch.uint8),
            torch.tensor([-32768, 32767, 300, -1, 0], dtype=torch.int16),
        )
        for name, function in (
            ("add_wrapped", lambda x, y: (x + y, x + 100, 70000 + x)),
            ("sub_wrapped", lambda x, y: (x - y, x - 100)),
            ("mul_wrapped", lambda x, y: (x * y, x * 3, x * -300)),
            ("neg_wrapped", lambda x, y: (-x, -y)),
        )
    ),
    ("add_wrapped", two(lambda x, y: x + y, *PAIR, unchanged=True)),
    ("channel_shuffle_by_parts", one(lambda x: torch.channel_shuffle(x, 2), R(2, 4, 3, 3), rtol=0, atol=0)),
    ("lerp_tensor_by_parts", two(lambda x, y: torch.lerp(x, y, y.sigmoid()), *PAIR)),
    ("smooth_l1_loss_by_parts", two(lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), *PAIR)),
    ("huber_loss_by_parts", two(lambda x, y: F.huber_loss(x, y, reduction="none"), *PAIR)),
    ("mse_loss_by_parts", two(lambda x, y: F.mse_loss(x, y, reduction="sum"), *PAIR)),
    ("binary_cross_entropy_by_parts", two(lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), *PAIR)),
    ("soft_margin_loss_by_parts", two(lambda x, y: F.soft_margin_loss(x, y.sign()), *PAIR)),
    *(("l1_loss_written_out", two(lambda x, y, r=r: F.l1_loss(x, y, reduction=r), *PAIR)) for r in ("mean", "none")),
    *(
        (
            "kl_div_written_out",
            two(lambda x, y, r=r, t=t: F.kl_div(x, y.abs().floor(), reduction=r, log_target=t), *PAIR),
        )
        for r in ("mean", "sum", "none")
        for t in (True, False)
    ),
    ("dist_by_norm", two(lambda x, y: (torch.dist(x, y), torch.dist(x, y, 1.0)), *PAIR)),
    ("trace_by_diagonal", one(torch.trace)),
    ("nanmean_by_count", one(lambda x: (x.nanmean(), x.nanmean(1, keepdim=True), x.nanmean((0, 1))), EDGES[1:])),
    ("xlogy_written_out", two(torch.xlogy, EDGES, EDGES.flip(1))),
    ("count_nonzero_by_parts", one(torch.count_nonzero, EDGES)),
    ("count_nonzero_dim_intlist_by_parts", one(lambda x: torch.count_nonzero(x, (0, 1)), EDGES)),
    ("nansum_by_parts", one(lambda x: (x.nansum(), x.nansum(0)), EDGES)),
    ("deg2rad_by_parts", one(torch.deg2rad)),
    ("rad2deg_by_parts", one(torch.rad2deg)),
    ("heaviside_by_parts", two(torch.heaviside, EDGES, R(2, 6))),
    ("sinc_by_parts", one(torch.sinc, torch.cat([torch.zeros(1, 6), R(2, 6)]))),
    ("take_by_parts", one(lambda x: torch.take(x, torch.tensor([0, 7, -1])))),
    ("diag_embed_by_parts", one(lambda x: torch.diag_embed(x, 1), rtol=0, atol=0)),
    ("cross_by_linalg_cross", two(lambda x, y: torch.cross(x, y), R(3, 4), R(3, 4))),
    ("linalg_cross_by_parts", two(lambda x, y: torch.linalg.cross(x, y), R(4, 3), R(4, 3))),
    ("addr_by_parts", one(lambda x: torch.addr(x, x[:, 0], x[0], beta=2, alpha=0.5))),
    ("hypot_scaled", two(torch.hypot, EDGES, EDGES.flip(1))),
    ("hypot_scaled", two(torch.hypot, R(5) * 1e30, R(5) * 1e30)),
    ("tensordot_by_matmul", two(lambda x, y: torch.tensordot(x, y, 2), R(2, 3, 4), R(3, 4, 5))),
    ("tensordot_by_matmul", two(lambda x, y: torch.tensordot(x, y, ([1], [0])), R(2, 3, 4), R(3, 4, 5))),
    ("tensordot_by_matmul", sizes(lambda x: torch.tensordot(x, x, ([1], [1])))),
    ("einsum_of_diagonals", one(lambda x: (torch.einsum("ii->i", x), torch.einsum("ii->", x)), R(4, 4))),
    ("einsum_of_diagonals", one(lambda x: torch.einsum("ibi->ib", x), R(4, 2, 4))),
    ("einsum_of_diagonals", two(lambda x, y: torch.einsum("bii,bi->b", x, y), R(2, 4, 4), R(2, 4))),
    ("einsum_of_diagonals", two(lambda x, y: torch.einsum("bi,bi->b", x, y), *PAIR, unchanged=True)),
    ("bilinear_by_matmul", two(lambda x, y: F.bilinear(x, y, W, W[:, 0, 0]), R(3, 6), R(3, 5))),
    ("erfc_by_erf", one(torch.erfc)),
    ("copysign_by_compare", two(torch.copysign, EDGES[:1, 1:], EDGES[:1, 1:].flip(1))),
    ("copysign_by_compare", one(lambda x: torch.copysign(x, -1.5))),
    ("fmax_by_compare", two(torch.fmax, EDGES, EDGES.flip(1))),
    ("fmin_by_compare", two(torch.fmin, EDGES, EDGES.flip(1))),
    ("isin_by_compare", one(lambda x: torch.isin(x, torch.tensor([1, 3, 3])), torch.arange(8).reshape(2, 4))),
    ("isin_by_compare", one(lambda x: torch.isin(x, torch.tensor([0.0, NAN]), invert=True), EDGES)),
    ("median_of_everything", one(torch.median)),
    ("median_of_everything", one(torch.median, EDGES)),
    ("kthvalue_by_sort", one(lambda x: (*torch.kthvalue(x, 2, 1), *torch.kthvalue(x, 3, 0, True)))),
    ("sort_of_bools", one(lambda x: torch.sort(x > 0, 1)[0])),
    *(("quantile_by_sort", one(lambda x, q=q: x.quantile(q, 1, keepdim=q == 1.0))) for q in (0.0, 0.3, 0.5, 1.0)),
    ("quantile_by_sort", one(lambda x: x.quantile(0.4, 1), EDGES[1:])),
    ("stable_argsort_by_sort", one(lambda x: torch.argsort(x.round(), dim=1, stable=True, descending=True), R(3, 9))),
    ("as_strided_by_places", one(lambda x: torch.as_strided(x, (2, 3, 2), (1, 2, 5), 1), rtol=0, atol=0)),
    ("index_fill_by_compare", sizes(lambda x: x.index_fill(1, torch.tensor([0, -2, 0]), -1.5), rtol=0, atol=0)),
    ("index_copy_by_compare", sizes(lambda x: x.index_copy(1, torch.tensor([5, 0]), x[:, 1:3]), rtol=0, atol=0)),
    *(
        ("cross_entropy_of_classes", one(lambda x, r=r: F.cross_entropy(x, CLASSES, reduction=r)))
        for r in ("mean", "sum", "none")
    ),
    ("cross_entropy_of_classes", one(lambda x: F.cross_entropy(x, CLASSES.clamp(min=0)[:, None]), R(3, 6, 1))),
    ("cross_entropy_of_classes", one(lambda x: F.cross_entropy(x, x.softmax(1)), unchanged=True)),
    ("adaptive_avg_pool3d_by_windows", one(lambda x: F.adaptive_avg_pool3d(x, (2, None, 3)), R(2, 3, 5, 2, 4))),
    (
        "adaptive_max_pool1d_by_windows",
        Case(
            function=lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True),
            inputs=((R(2, 3, 11),), (R(5, 3, 11),)),
            dynamic=BATCH,
        ),
    ),
]


@pytest.mark.parametrize(("name", "case"), EQUAL, ids=[f"{n}-{i}" for i, (n, _) in enumerate(EQUAL)])
def test_rewrite_gives_the_same(name: str, case: Case) -> None:
    check(name, case)


@pytest.mark.parametrize(
    ("name", "function"), [("var_correction_given", torch.var), ("std_correction_given", torch.std)]
)
def test_a_spread_names_its_dimensions_and_correction(name: str, function: Any) -> None:
    def spreads(x: torch.Tensor) -> Any:
        return function(x), function(x, [1], correction=None), function(x, None, correction=2, keepdim=True)

    program = export(sizes(spreads))
    legal = legalize(program, [name])
    calls = [n for n in legal.graph.nodes if n.op == "call_function" and "correction" in str(n.target)]
    assert [(list(n.args[1]), n.kwargs["correction"]) for n in calls] == [([0, 1], 1), ([1], 1), ([0, 1], 2)]
    for size in (3, 1, 9):
        x = R(size, 6)
        torch.testing.assert_close(tuple(tensors(legal.module()(x))), spreads(x), equal_nan=True)


@pytest.mark.parametrize("name", ["outputs_at_their_roots", "aliases_dropped"])
def test_repeated_outputs_stay(name: str) -> None:
    def repeated(x: torch.Tensor) -> Any:
        y = x.relu()
        return y, y.detach(), y[:], x[:], F.dropout(y, 0.5, False), y[:] * 2, x.clone(), y.squeeze(1)

    check(name, sizes(repeated, rtol=0, atol=0))
