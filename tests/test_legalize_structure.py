"""Rewrites of attention, indexing, products, creation and shapes keep the program's meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from tests.legalize_support import Case, check

INF, NAN = float("inf"), float("nan")
R = torch.randn
torch.manual_seed(0)


def batches(*shape: int, sizes: tuple[int, ...] = (2, 1, 7)) -> tuple[tuple[torch.Tensor], ...]:
    return tuple((R(n, *shape),) for n in sizes)


def batch(count: int = 1) -> tuple[dict[int, Any], ...]:
    return tuple({0: Dim("n", min=1, max=16)} for _ in range(count))


def qkv(n: int = 2, t: int = 5, heads: int = 2, kv_heads: int = 2) -> tuple[torch.Tensor, ...]:
    return R(n, heads, t, 4), R(n, kv_heads, t, 4), R(n, kv_heads, t, 4)


def _steps() -> Any:
    return tuple({0: Dim("n", min=1, max=16), 2: Dim("t", min=2, max=24)} for _ in range(3))


attention = F.scaled_dot_product_attention
_BLIND = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
_BLIND_FLOAT = torch.zeros(3, 3).masked_fill(~_BLIND, -INF)


FLAGS = torch.tensor([[True, False, True], [False, False, True]])
WHOLE = torch.tensor([[5, 12, 7], [0, 255, 6]])

CASES: dict[str, list[Case]] = {
    "attention_of_three_dimensions": [
        Case(
            function=lambda q, k, v: (
                attention(q[:, 0], k[:, 0], v[:, 0], scale=0.3),
                attention(q[:, 0], k[:, 0], v[:, 0], is_causal=True),
            ),
            inputs=(qkv(2, 5, 4), qkv(1, 2, 4), qkv(7, 9, 4)),
            dynamic=_steps(),
        ),
        Case(
            function=lambda q, k, v: attention(q[:, 1], k[:, 1], v[:, 1], torch.ones(2, 3, 3, dtype=torch.bool).tril()),
            inputs=(qkv(2, 3, 4),),
        ),
        Case(function=attention, inputs=(qkv(2, 3),), unchanged=True),
    ],
    "grouped_query_attention": [
        Case(function=lambda q, k, v: attention(q, k, v, enable_gqa=True), inputs=(qkv(heads=6, kv_heads=2),)),
        Case(
            function=lambda q, k, v: attention(q, k, v, is_causal=True, enable_gqa=True),
            inputs=(qkv(2, 5, 4), qkv(1, 2, 4), qkv(7, 9, 4)),
            dynamic=_steps(),
        ),
    ],
    "attention_of_blind_rows": [
        Case(function=attention, inputs=((*qkv(t=3), _BLIND), (*qkv(t=3), torch.ones(3, 3, dtype=torch.bool)))),
        Case(function=attention, inputs=((*qkv(t=3), _BLIND_FLOAT),)),
        Case(function=lambda q, k, v, m: attention(q, k, v, m, scale=0.3), inputs=((*qkv(t=3), _BLIND[1:2]),)),
        Case(function=lambda q, k, v: attention(q, k, v, _BLIND, enable_gqa=True), inputs=(qkv(3, 3, 6, kv_heads=2),)),
    ],
    "attention_by_matmul": [
        Case(
            function=lambda q, k, v: (attention(q, k, v), attention(q, k, v, is_causal=True)),
            inputs=(qkv(), qkv(1, 2), qkv(7, 9)),
            dynamic=_steps(),
        ),
        Case(function=lambda q, k, v: attention(q, k, v, scale=0.3), inputs=(qkv(),)),
        Case(function=lambda q, k, v: attention(q, k, v, enable_gqa=True), inputs=(qkv(heads=4),)),
        Case(function=attention, inputs=((*qkv(t=3), _BLIND), (*qkv(t=3), torch.ones(3, 3, dtype=torch.bool)))),
        Case(function=attention, inputs=((*qkv(t=3), _BLIND_FLOAT),)),
        Case(function=attention, inputs=((R(2, 3, 4), R(2, 5, 4), R(2, 5, 6)),)),
        Case(
            function=lambda q, k, v: attention(q, k, v, is_causal=True), inputs=((R(2, 3, 4), R(2, 5, 4), R(2, 5, 4)),)
        ),
    ],
    "diagonal_by_select": [
        Case(
            function=lambda x: (x.diagonal(dim1=1, dim2=2), x.diagonal(1, 1, 2), x.diagonal(-2, 2, 1)),
            inputs=batches(4, 5),
            dynamic=batch(),
        ),
        Case(function=lambda x: x.diagonal(9), inputs=((R(3, 4),),)),
    ],
    "gather_cropped": [
        Case(
            function=lambda x, i: x.gather(1, i),
            inputs=((R(4, 3, 5), torch.randint(0, 3, (2, 4, 3))),),
            rtol=0,
            atol=0,
        ),
    ],
    "unfold_by_slices": [Case(function=lambda x: x.unfold(1, 3, 2), inputs=batches(8, 2), dynamic=batch())],
    "im2col_by_convolution": [
        Case(function=nn.Unfold(3, dilation=2, padding=1, stride=2), inputs=batches(3, 8, 9), dynamic=batch())
    ],
    "col2im_by_transposed_convolution": [
        Case(function=nn.Fold((4, 5), (2, 2)), inputs=batches(12, 12), dynamic=batch()),
        Case(function=nn.Fold((7, 8), (3, 2), padding=1, stride=2), inputs=((R(1, 12, 20),),)),
    ],
    "triu_by_compare": [
        Case(function=lambda x: (x.triu(1), x.triu(-1)), inputs=((torch.full((4, 5), -INF),),)),
        Case(function=lambda x: x.triu(), inputs=((torch.ones(3, 3, dtype=torch.bool),),)),
    ],
    "tril_by_compare": [
        Case(
            function=lambda x: x.tril(),
            inputs=tuple((R(2, n, n),) for n in (5, 2, 9)),
            dynamic=({1: Dim("t", min=2, max=16), 2: Dim("t", min=2, max=16)},),
        ),
        Case(function=lambda x: x.tril(1), inputs=((torch.full((4, 5), NAN),),)),
    ],
    "bucketize_by_compare": [
        Case(
            function=lambda v, s: (torch.bucketize(v, s), torch.bucketize(v, s, right=True, out_int32=True)),
            inputs=((torch.tensor([[2.0, 0.0, 5.0, NAN, INF, -INF]]), torch.tensor([1.0, 2.0, 2.0, 3.0])),),
        ),
        Case(function=torch.bucketize, inputs=((WHOLE, torch.tensor([5, 7])),)),
    ],
    "index_add_written_out": [
        Case(
            function=lambda x, i, s: x.index_add(0, i, s, alpha=2),
            inputs=((R(5, 3), torch.tensor([0, 4, 0]), R(3, 3)),),
        )
    ],
    "where_scalar_other": [Case(function=lambda x: torch.where(x > 0, x, 2.0), inputs=((R(6),),))],
    "where_scalar_self": [Case(function=lambda x: torch.where(x > 0, 2.0, x), inputs=((R(6),),))],
    "where_scalars": [Case(function=lambda x: torch.where(x > 0, 2.0, 1.0), inputs=((R(6),),))],
    "and_operator": [
        Case(function=lambda a: torch.ops.aten.__and__.Scalar(a, 6), inputs=((WHOLE,),)),
        Case(function=lambda a, b: torch.ops.aten.__and__.Tensor(a, b), inputs=((FLAGS, ~FLAGS),)),
        Case(function=lambda a, b: torch.ops.aten.__and__.Tensor(a, b), inputs=((WHOLE, WHOLE.flip(0)),)),
    ],
    "bool_and_is_logical": [
        Case(function=torch.bitwise_and, inputs=((FLAGS, FLAGS.flip(0)),)),
        Case(function=torch.bitwise_and, inputs=((WHOLE, WHOLE.flip(0)),), unchanged=True),
    ],
    "bool_or_is_logical": [Case(function=torch.bitwise_or, inputs=((FLAGS, FLAGS.flip(0)),))],
    "bool_xor_is_logical": [Case(function=torch.bitwise_xor, inputs=((FLAGS, FLAGS.flip(0)),))],
    "or_operator": [
        Case(function=lambda a: torch.ops.aten.__or__.Scalar(a, 6), inputs=((WHOLE,),)),
        Case(function=lambda a, b: torch.ops.aten.__or__.Tensor(a, b), inputs=((FLAGS, ~FLAGS),)),
    ],
    "xor_operator": [
        Case(function=lambda a: torch.ops.aten.__xor__.Scalar(a, 6), inputs=((WHOLE,),)),
        Case(function=lambda a, b: torch.ops.aten.__xor__.Tensor(a, b), inputs=((FLAGS, FLAGS.flip(0)),)),
    ],
    "new_ones_written_out": [
        Case(function=lambda x: torch.cat([x.new_ones(x.shape[0], 2), x], 1), inputs=batches(3), dynamic=batch()),
        Case(function=lambda x: x.new_ones(2, dtype=torch.int64), inputs=((R(3),),)),
    ],
    "unsafe_split_tensor_written_out": [
        Case(function=lambda x: torch.ops.aten.unsafe_split.Tensor(x, 2, 1), inputs=((R(3, 5),),))
    ],
    "unsafe_chunk_by_chunk": [Case(function=lambda x: torch.unsafe_chunk(x, 2, 1), inputs=((R(3, 5),),))],
    "matmul_vector": [
        Case(
            function=lambda x, v: x @ v,
            inputs=tuple((R(n, 6), R(6)) for n in (2, 1, 7)),
            dynamic=({0: Dim("n", min=1, max=9)}, None),
        ),
        Case(function=lambda v, x: v @ x, inputs=((R(6), R(2, 6, 3)),)),
        Case(function=lambda x, y: x @ y, inputs=((R(2, 3), R(3, 2)),), unchanged=True),
    ],
    "mv_by_mm": [Case(function=torch.mv, inputs=((R(4, 3), R(3)),))],
    "outer_by_product": [
        Case(
            function=torch.outer,
            inputs=tuple((R(n), R(3)) for n in (2, 1, 7)),
            dynamic=({0: Dim("n", min=1, max=9)}, None),
        )
    ],
    "kron_by_product": [Case(function=torch.kron, inputs=((R(2, 3), R(4, 1)),))],
    "cdist_by_difference": [
        Case(
            function=torch.cdist, inputs=tuple((R(n, 3, 4), R(n, 5, 4)) for n in (2, 1, 7)), dynamic=batch(2), atol=1e-5
        ),
        Case(
            function=lambda x, y: (
                torch.cdist(x, y, 1.0),
                torch.cdist(x, y, INF),
                torch.cdist(x, y, 3.0),
                torch.cdist(x, y, 0.0),
            ),
            inputs=((R(3, 4), R(5, 4)),),
        ),
    ],
    "bicubic_grid_sample_by_index": [
        Case(
            function=lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=False),
            inputs=((R(2, 3, 6, 7), torch.rand(2, 4, 5, 2) * 3 - 1.5),),
        )
    ],
    "grid_sample_by_index": [
        Case(
            function=lambda x, g: (
                F.grid_sample(x, g, padding_mode="reflection", align_corners=False),
                F.grid_sample(x, g, mode="nearest", align_corners=True),
                F.grid_sample(x, g, padding_mode="border", align_corners=True),
            ),
            inputs=tuple((R(n, 3, 6, 7), torch.rand(n, 4, 5, 2) * 3 - 1.5) for n in (2, 1, 7)),
            dynamic=batch(2),
        )
    ],
    "affine_grid_generator_written_out": [
        Case(
            function=lambda t, x: F.affine_grid(t, x.shape, align_corners=False),
            inputs=tuple((R(n, 2, 3), R(n, 1, 4, 5)) for n in (2, 1, 7)),
            dynamic=batch(2),
        )
    ],
    "zeros_dtype": [
        Case(function=lambda x: x + torch.zeros(x.shape[0], 1, dtype=torch.int64), inputs=batches(3), dynamic=batch()),
        Case(function=lambda x: (x, torch.zeros(2, dtype=torch.bool)), inputs=((R(2),),)),
    ],
    "eye_dtype": [Case(function=lambda x: x @ torch.eye(3, dtype=torch.int64), inputs=((WHOLE,),))],
    "eye_m_dtype": [Case(function=lambda x: x @ torch.eye(3, 2, dtype=torch.int64), inputs=((WHOLE,),))],
    "zeros_like_dtype": [
        Case(function=lambda x: torch.zeros_like(x, dtype=torch.int32), inputs=batches(3), dynamic=batch())
    ],
    "ones_like_dtype": [Case(function=lambda x: torch.ones_like(x, dtype=torch.bool), inputs=((R(3),),))],
    "full_like_dtype": [Case(function=lambda x: torch.full_like(x, 7, dtype=torch.int64), inputs=((R(3),),))],
    "new_zeros_dtype": [
        Case(
            function=lambda x: (x.new_zeros(2), x.new_zeros(x.shape[0], dtype=torch.int32)),
            inputs=batches(3),
            dynamic=batch(),
        )
    ],
    "new_full_dtype": [
        Case(function=lambda x: x.new_full((x.shape[0], 2), 7, dtype=torch.int64), inputs=batches(3), dynamic=batch()),
        Case(function=lambda x: x.new_full((2,), 7.5), inputs=((R(3),),)),
    ],
    "arange_dtype": [
        Case(
            function=lambda x: x + torch.arange(x.shape[1], dtype=torch.float32),
            inputs=tuple((R(2, n),) for n in (5, 2, 12)),
            dynamic=({1: Dim("n", min=2, max=12)},),
        ),
        Case(function=lambda x: (x, torch.arange(2, 9, 3, dtype=torch.int32)), inputs=((R(3),),)),
        Case(function=lambda x: x + torch.arange(0.5, 3, dtype=torch.float32), inputs=((R(3),),), unchanged=True),
    ],
    "scalar_tensor_dtype": [
        Case(function=lambda x: x + torch.scalar_tensor(3, dtype=torch.int64), inputs=((WHOLE,),)),
    ],
    "infer_reshape_size": [
        Case(
            function=lambda x: x.reshape(x.shape[0], 2, 2, x.shape[2]).flatten(1),
            inputs=tuple((R(n, 4, h),) for n, h in ((2, 3), (1, 2), (7, 9))),
            dynamic=({0: Dim("n", min=1, max=16), 2: Dim("h", min=2, max=9)},),
        ),
        Case(function=lambda x: x.reshape(-1, 4, 3), inputs=batches(2, 6), dynamic=batch()),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)
