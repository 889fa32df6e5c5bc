"""Rewrites of whole programs: interface, in-place ops, weights, memory order, half precision, quantised weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from build.legalize import legalize
from build.program import op_name, op_nodes
from tests.legalize_support import Case, check, export, tensors

NAN = float("nan")
R = torch.randn
torch.manual_seed(0)


def batches(*shape: int, sizes: tuple[int, ...] = (2, 1, 7)) -> tuple[tuple[torch.Tensor], ...]:
    return tuple((R(n, *shape),) for n in sizes)


def batch(count: int = 1) -> Any:
    return tuple({0: Dim("n", min=1, max=16)} for _ in range(count))


class _Weights(nn.Module):
    """Weights used through views, and one used as it is too."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Parameter(R(6, 4))
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))

    def forward(self, x: torch.Tensor) -> Any:
        first = F.linear(x, self.packed[:3])
        return first, F.linear(x, self.packed[3:]), x + self.table.t().reshape(4, 3)[:, 1], x @ self.packed.T


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.table.view(3)[:2] * 1
        self.table.mul_(2)
        return x[:2] + before + self.table[1:]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.head = nn.Linear(144, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.relu(self.conv(x)).flatten(1)
        parts = torch.chunk(self.head(y), 3, 1)
        return parts[0], parts[2], torch.softmax(torch.cat(parts, 1), 1), y


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1e5, -7e4], [1.0, 2.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) * 1e-3


class _Statistics(nn.Module):
    """A buffer that the program updates from half-precision work."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.last.copy_(y)
        return y + self.last


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1] = 7
    y.add_(1).relu_()
    return y * x


CASES: dict[str, list[Case]] = {
    "flat_interface": [
        Case(
            function=lambda x, y: (x + y, x, x - y), inputs=((R(2, 3), R(2, 3)), (R(5, 3), R(5, 3))), dynamic=batch(2)
        ),
    ],
    "own_output_nodes": [
        Case(
            function=lambda x, y: (x, x * y, x, y > 0, y > 0),
            inputs=tuple((R(n, 3), R(n, 3)) for n in (2, 1, 7)),
            dynamic=batch(2),
            rtol=0,
            atol=0,
        ),
        Case(
            function=lambda x, y: (x, y, x, y),
            inputs=((torch.tensor([True, False]), torch.tensor([NAN, -0.0, float("inf")])),),
            rtol=0,
            atol=0,
        ),
        Case(function=lambda x: (x, x), inputs=((torch.tensor([-(2**63), 2**63 - 1]),),), rtol=0, atol=0),
        Case(function=lambda x: (x, x), inputs=((torch.tensor([0, 255], dtype=torch.uint8),),), rtol=0, atol=0),
    ],
    "functional_form": [
        Case(function=_in_place, inputs=batches(3), dynamic=batch()),
        Case(function=lambda x: x * 2, inputs=((R(3),),)),
    ],
    "fold_weight_views": [
        Case(function=_Weights(), inputs=batches(4), dynamic=batch()),
    ],
    "contiguous_tensors": [
        Case(
            function=nn.Conv2d(1, 2, 1).to(memory_format=torch.channels_last),
            inputs=((R(2, 1, 4, 4).to(memory_format=torch.channels_last),), (R(2, 1, 4, 4),)),
            atol=1e-5,
        ),
        Case(function=lambda x: x.transpose(0, 1) + x.T, inputs=((R(3, 5).T,), (R(5, 3),))),
        Case(function=nn.Linear(3, 2), inputs=((R(2, 3),),)),
    ],
    "views_as_reshapes": [
        Case(function=lambda x: x.view(x.shape[0], -1) + 1, inputs=batches(3, 4), dynamic=batch()),
        Case(function=lambda x: x.transpose(1, 2).contiguous().view(-1, 3), inputs=batches(3, 4), dynamic=batch()),
    ],
    "half_inside": [
        Case(function=_Net(), inputs=batches(1, 8, 8), dynamic=batch(), rtol=1e-2, atol=5e-3),
        Case(function=_Scaled(), inputs=batches(2), dynamic=batch()),
        Case(function=_Statistics(), inputs=((R(2, 4),),), rtol=1e-2, atol=5e-3),
        Case(function=lambda x: x.cumsum(1) * 1e6, inputs=((R(2, 9),),), rtol=0, atol=0),
        Case(function=lambda x, y: (x @ y, x), inputs=((torch.randint(0, 9, (2, 3)), torch.randint(0, 9, (3, 2))),)),
    ],
    "shift_operators": [
        Case(function=lambda x: ((x << 3) + 1, x >> 2), inputs=((torch.tensor([-9, -1, 0, 7]),),), rtol=0, atol=0),
        Case(
            function=lambda x, n: (x << n, x >> n),
            inputs=((torch.tensor([-9, -1, 5, 7]), torch.tensor([1, 2, 0, 3])),),
            rtol=0,
            atol=0,
        ),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)


def _ops(program: Any) -> set[str]:
    return {op_name(n) for n in op_nodes(program)}


def test_flat_interface_keeps_tensors_in_order_and_drops_the_rest() -> None:
    class Nested(nn.Module):
        def forward(self, x: dict[str, torch.Tensor], *, scale: torch.Tensor) -> Any:
            x["b"].add_(1)
            return {"z": x["a"] * scale, "more": [None, x["b"], (3, scale)]}

    a, b, scale = R(2), R(2), R(2)
    program = torch.export.export(Nested(), ({"a": a, "b": b.clone()},), {"scale": scale})
    legal = legalize(program, ["functional_form", "flat_interface"])
    got = legal.module()(a, b.clone(), scale)
    assert isinstance(got, tuple)
    for g, w in zip(got, (a * scale, b + 1, scale), strict=True):
        torch.testing.assert_close(g, w)


def test_own_output_nodes_gives_every_output_its_own_node() -> None:
    legal = legalize(export(Case(function=lambda x: (x, x + 1, x), inputs=((R(2),),))), ["own_output_nodes"])
    outputs = legal.graph.output_node().args[0]
    assert len(set(outputs)) == 3
    assert all(n.op == "call_function" for n in outputs)


def test_functional_form_leaves_no_in_place_op() -> None:
    legal = legalize(export(Case(function=_in_place, inputs=((R(2, 3),),))), ["functional_form"])
    assert not any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in op_nodes(legal))


def test_fold_weight_views_leaves_no_view_of_a_weight_but_those_of_a_changing_buffer() -> None:
    folded = legalize(export(Case(function=_Weights(), inputs=((R(2, 4),),))), ["fold_weight_views"])
    assert _ops(folded) == {"aten.linear.default", "aten.add.Tensor", "aten.matmul.default"}
    program = torch.export.export(_Counter(), (R(3),))
    counting = legalize(program, ["functional_form", "fold_weight_views"]).module()
    eager = _Counter()
    for _ in range(3):
        x = R(3)
        torch.testing.assert_close(counting(x), eager(x))


def test_contiguous_tensors_captures_no_other_order() -> None:
    x = R(2, 3, 4, 4).to(memory_format=torch.channels_last)
    model = nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)
    legal = legalize(export(Case(function=model, inputs=((x,),))), ["contiguous_tensors"])
    values = [n.meta["val"] for n in legal.graph.nodes if n.op == "placeholder"]
    assert len(values) == 3
    assert all(v.stride() == torch.empty(v.shape).stride() for v in values)


def test_half_inside_computes_products_in_half_and_sums_in_full() -> None:
    legal = legalize(export(Case(function=_Net(), inputs=((R(2, 1, 8, 8),),))), ["half_inside"])
    dtypes = {op_name(n): n.meta["val"].dtype for n in op_nodes(legal) if isinstance(n.meta["val"], torch.Tensor)}
    assert dtypes["aten.conv2d.default"] is dtypes["aten.linear.default"] is torch.float16
    assert dtypes["aten.softmax.int"] is torch.float32
    beyond = legalize(export(Case(function=_Scaled(), inputs=((R(2, 2),),))), ["half_inside"])
    assert all(n.meta["val"].dtype is torch.float32 for n in op_nodes(beyond))


class _Quantized(nn.Module):
    """A linear layer whose weight is kept as int8 with torchao's blocks, scales and zero points."""

    def __init__(self, block: tuple[int, int], *, zero_point: bool, quantized_input: bool = False) -> None:
        super().__init__()
        grid = (6 // block[0], 4 // block[1])
        self.block = list(block)
        self.quantized_input = quantized_input
        self.register_buffer("q", torch.randint(-128, 128, (6, 4), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(grid) + 0.1)
        self.register_buffer("zero", torch.randint(-9, 9, grid) if zero_point else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.torchao
        weight = ops.dequantize_affine(self.q, self.block, self.scale, self.zero, torch.int8, -128, 127)
        if self.quantized_input:
            scale, zero = torch.tensor(0.05), torch.tensor(3)
            q = ops.quantize_affine(x, [2, 4], scale, zero, torch.int8, -128, 127)
            x = ops.dequantize_affine(q, [2, 4], scale, zero, torch.int8, -128, 127)
        return F.linear(x, weight)


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("block", [(6, 4), (1, 4), (6, 1), (1, 1)])
def test_dequantize_by_product_equals_torchao(block: tuple[int, int], zero_point: bool) -> None:
    import torchao.quantization  # noqa: F401  (registers its ops)

    case = Case(function=_Quantized(block, zero_point=zero_point), inputs=batches(4), dynamic=batch())
    check("dequantize_by_product", case)
    assert "torchao.dequantize_affine.default" not in _ops(legalize(export(case), ["dequantize_by_product"]))


def test_dequantize_by_product_leaves_blocks_and_quantised_activations_alone() -> None:
    import torchao.quantization  # noqa: F401  (registers its ops)

    blocks = Case(function=_Quantized((1, 2), zero_point=True), inputs=((R(2, 4),),))
    pair = Case(function=_Quantized((1, 4), zero_point=False, quantized_input=True), inputs=((R(2, 4),),))
    for case, count in ((blocks, 1), (pair, 2)):
        check("dequantize_by_product", case)
        legal = legalize(export(case), ["dequantize_by_product"])
        assert sum(op_name(n) == "torchao.dequantize_affine.default" for n in op_nodes(legal)) == count


def test_attention_written_out_keeps_the_views_behind_it() -> None:
    """Export drops the ``contiguous`` behind attention; written out as products its memory order is another."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.attention(x, x, x, need_weights=False)[0]

    case = Case(
        function=Attention().eval(),
        inputs=tuple((R(n, t, 8),) for n, t in ((2, 5), (1, 3), (4, 7))),
        dynamic=({0: Dim("n", min=1, max=8), 1: Dim("t", min=2, max=16)},),
        atol=1e-5,
    )
    program = export(case)
    want = [tensors(program.module()(*args)) for args in case.inputs]
    legal = legalize(program, ["functional_form", "views_as_reshapes", "attention_by_matmul"]).module()
    for args, expected in zip(case.inputs, want, strict=True):
        torch.testing.assert_close(tensors(legal(*args)), expected, atol=1e-5, rtol=1e-4)
