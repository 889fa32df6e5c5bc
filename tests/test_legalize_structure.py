"""Rewrites of attention, indexing, products, recurrent layers, creation and whole graphs keep the program's meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from build.legalize import REGISTRY, legalize
from build.program import input_names, output_names
from tests.legalize_support import Case, check, export, names_in_tests, tensors

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


class _Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


class _Cell(nn.Module):
    def __init__(self, cell: nn.Module, states: int = 1) -> None:
        super().__init__()
        self.cell = cell
        self.states = states

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.cell(x, (h, h)) if self.states == 2 else self.cell(x, h)


FLAGS = torch.tensor([[True, False, True], [False, False, True]])
WHOLE = torch.tensor([[5, 12, 7], [0, 255, 6]])

CASES: dict[str, list[Case]] = {
    "grouped_query_attention": [
        Case(function=lambda q, k, v: attention(q, k, v, enable_gqa=True), inputs=(qkv(heads=6, kv_heads=2),)),
        Case(
            function=lambda q, k, v: attention(q, k, v, is_causal=True, enable_gqa=True),
            inputs=(qkv(2, 5, 4), qkv(1, 2, 4), qkv(7, 9, 4)),
            dynamic=_steps(),
        ),
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
    "unroll_lstm": [
        Case(
            function=_Recurrent(nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)),
            inputs=batches(4, 6),
            dynamic=batch(),
        ),
        Case(function=_Recurrent(nn.LSTM(6, 5, batch_first=True, proj_size=3)), inputs=((R(2, 4, 6),),)),
    ],
    "unroll_gru": [
        Case(
            function=_Recurrent(nn.GRU(6, 5, batch_first=True, bidirectional=True)),
            inputs=batches(4, 6),
            dynamic=batch(),
        ),
        Case(function=_Recurrent(nn.GRU(6, 5)), inputs=((R(4, 2, 6),),)),
    ],
    "unroll_rnn_tanh": [
        Case(function=_Recurrent(nn.RNN(6, 5, batch_first=True)), inputs=batches(4, 6), dynamic=batch())
    ],
    "unroll_rnn_relu": [
        Case(
            function=_Recurrent(nn.RNN(6, 5, nonlinearity="relu", batch_first=True)),
            inputs=batches(4, 6),
            dynamic=batch(),
        )
    ],
    "lstm_cell_written_out": [Case(function=_Cell(nn.LSTMCell(4, 3), 2), inputs=((R(2, 4), R(2, 3)),))],
    "gru_cell_written_out": [Case(function=_Cell(nn.GRUCell(4, 3)), inputs=((R(2, 4), R(2, 3)),))],
    "rnn_tanh_cell_written_out": [Case(function=_Cell(nn.RNNCell(4, 3)), inputs=((R(2, 4), R(2, 3)),))],
    "rnn_relu_cell_written_out": [
        Case(function=_Cell(nn.RNNCell(4, 3, nonlinearity="relu")), inputs=((R(2, 4), R(2, 3)),))
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


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_rewrite_has_a_test(name: str) -> None:
    assert name in names_in_tests(), f"no test in tests/ names the rewrite '{name}'"


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_rewrite_names_its_fault(name: str) -> None:
    rewrite = REGISTRY[name]
    assert len(rewrite.fault.split()) > 3
    assert (rewrite.decompose is None) != (rewrite.graph_pass is None)
    assert rewrite.decompose is None or rewrite.ops


def test_fill_defaults_writes_every_positional_argument() -> None:
    program = export(Case(function=nn.MaxPool2d(2), inputs=((R(1, 1, 4, 4),),)))
    want = program.module()(*program.example_inputs[0])
    legal = legalize(program, ["fill_defaults"])
    node = next(n for n in legal.graph.nodes if n.op == "call_function")
    assert list(node.args[1:]) == [[2, 2], [2, 2], [0, 0], [1, 1], False] or len(node.args) == 6
    torch.testing.assert_close(legal.module()(*program.example_inputs[0]), want)


def test_rename_clashes_keeps_public_names() -> None:
    def clash(x: torch.Tensor) -> dict[str, torch.Tensor]:
        floor = torch.floor(x)
        return {"floor": floor, "tanh": torch.tanh(floor)}

    program = export(Case(function=clash, inputs=((R(4),),)))
    names = {n.name for n in program.graph.nodes}
    assert {"floor", "tanh"} <= names
    public = (input_names(program), output_names(program))
    x = R(4)
    want = program.module()(x)
    legal = legalize(program, ["rename_clashes"])
    assert not {"floor", "tanh"} & {n.name for n in legal.graph.nodes}
    assert (input_names(legal), output_names(legal)) == public
    torch.testing.assert_close(legal.module()(x), want)


def test_drop_derived_ranges_lets_a_reloaded_program_be_decomposed(tmp_path: Any) -> None:
    eight = 8 * Dim("n", min=1, max=6)
    case = Case(
        function=lambda x: F.gelu(F.avg_pool1d(x, 4), approximate="tanh"),
        inputs=((R(2, 3, 24),),),
        dynamic=({2: eight},),
    )
    torch.export.save(export(case), tmp_path / "p.pt2")
    program = torch.export.load(tmp_path / "p.pt2")
    legal = legalize(program, ["drop_derived_ranges", "gelu_tanh"])
    for size in (8, 40, 48):
        x = R(2, 3, size)
        torch.testing.assert_close(legal.module()(x), F.gelu(F.avg_pool1d(x, 4), approximate="tanh"))


def test_rewrites_of_one_op_are_tried_in_order() -> None:
    program = export(Case(function=lambda x, y: (x // y, (x * 10).int() // 3), inputs=((R(6), R(6)),)))
    inputs = (R(6), R(6))
    want = tensors(program.module()(*inputs))
    legal = legalize(program, ["float_floor_division", "int_floor_division_by_trunc"])
    assert not any("floor_divide" in str(n.target) for n in legal.graph.nodes)
    torch.testing.assert_close(tensors(legal.module()(*inputs)), want, rtol=0, atol=0)
