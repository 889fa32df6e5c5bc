"""What becomes an integer and what stays float, without any converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from build.errors import InputError
from build.legalize import legalize
from build.program import call, op_name, signature_of
from build.quantize.annotate import Integers, static_quantizer, weight_quantizer
from build.quantize.pt2e import quantize, without_batch_norms
from build.quantize.recognise import is_quantized, quantized_ops
from build.quantize.weighted import channel_axis
from tests.mobile_network import calibration, images, saved, small


class Function(nn.Module):
    def __init__(self, function: Any, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(self, *tensors)


def graph_of(module: nn.Module, *args: torch.Tensor) -> Any:
    return torch.export.export(module.eval(), args).module(check_guards=False).graph


def integers_in(graph: Any, keep: tuple[str, ...] = ()) -> set[str]:
    found = Integers(graph, keep)
    return {n.name for n in graph.nodes if n in found}


def test_sum_of_two_layers_is_an_integer_and_a_mask_is_not() -> None:
    module = Function(lambda s, x, mask: s.a(x) + s.b(x) + mask, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    graph = graph_of(module, torch.randn(2, 4), torch.randn(2, 4))
    assert integers_in(graph) == {"linear", "linear_1", "add"}


def test_softmax_and_norms_stay_float() -> None:
    module = Function(lambda s, x: s.n(torch.softmax(s.a(x), -1)), a=nn.Linear(4, 4), n=nn.LayerNorm(4))
    assert integers_in(graph_of(module, torch.randn(2, 4))) == {"linear"}


def test_kept_node_takes_along_what_hands_its_value_on_and_what_reads_it() -> None:
    module = Function(
        lambda s, x: s.c(s.b(torch.relu(s.a(x)))), a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4)
    )
    graph = graph_of(module, torch.randn(2, 4))
    assert integers_in(graph) == {"linear", "relu", "linear_1", "linear_2"}
    assert integers_in(graph, ("linear",)) == {"linear_2"}


@pytest.mark.parametrize(
    ("layer", "axis"),
    [
        (nn.Conv2d(4, 8, 3), 0),
        (nn.ConvTranspose2d(4, 8, 3), 1),
        (nn.ConvTranspose2d(4, 8, 3, groups=2), 0),
        (nn.Conv1d(4, 8, 3), 0),
    ],
)
def test_every_output_channel_has_its_scale(layer: nn.Module, axis: int) -> None:
    x = torch.randn(1, 4, 9) if isinstance(layer, nn.Conv1d) else torch.randn(1, 4, 9, 9)
    node = next(n for n in graph_of(layer, x).nodes if n.op == "call_function")
    assert channel_axis(node) == axis


def load(path: Path) -> Any:
    return torch.export.load(path)


def test_quantised_program_keeps_names_and_range(tmp_path: Path) -> None:
    path = saved(small(), (images(2),), tmp_path)
    made = quantize(load(path), static_quantizer(), calibration())
    assert signature_of(made).outputs[0].name == "logits"
    assert list(signature_of(made).dynamic_symbols.values()) == [(1, 32)]
    assert is_quantized(made)
    x = images(5)
    torch.testing.assert_close(call(made)([x])[0], call(load(path))([x])[0], rtol=0, atol=0.03)


def readers(program: Any, name: str) -> set[str]:
    """What reads a node, and what it reads, by op."""
    node = next(n for n in program.graph.nodes if n.name == name)
    return {op_name(n) for n in (*node.users, *node.all_input_nodes) if n.op == "call_function"}


def test_kept_layer_has_no_rounding_at_its_weight_or_value(tmp_path: Path) -> None:
    path = saved(small(), (images(2),), tmp_path)
    keep = ("linear_1",)
    made = quantize(load(path), static_quantizer(keep), calibration(), keep_float=keep)
    assert not any("quantize" in op for op in readers(made, "linear_1"))
    assert any("dequantize" in op for op in readers(made, "linear"))


def test_name_of_a_batch_norm_keeps_the_layer_that_it_is_folded_into(tmp_path: Path) -> None:
    path = saved(small(), (images(2),), tmp_path)
    program, keep = without_batch_norms(load(path), ["batch_norm"])
    assert keep == ["conv2d"]
    assert not any("batch_norm" in op_name(n) for n in program.graph.nodes if n.op == "call_function")


class Shared(nn.Module):
    """A convolution whose value is normed, and used as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.norm.running_mean.fill_(3)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = self.layer(image)
        return self.norm(value), value * 2


def test_batch_norm_is_not_folded_where_the_layer_is_used_elsewhere(tmp_path: Path) -> None:
    path = saved(Shared().eval(), (images(2),), tmp_path)
    _, keep = without_batch_norms(load(path), ["batch_norm"])
    assert len(keep) == 2
    made = quantize(load(path), weight_quantizer(), calibration())
    x = images(4)
    for got, want in zip(call(made)([x]), call(load(path))([x]), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0.03)


def test_unknown_name_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    path = saved(small(), (images(2),), tmp_path)
    with pytest.raises(InputError, match="linear_1"):
        quantize(load(path), static_quantizer(), calibration(), keep_float=("linear_11",))


def test_weights_alone_have_the_bits_asked_for(tmp_path: Path) -> None:
    path = saved(small(), (images(2),), tmp_path)
    made = quantize(load(path), weight_quantizer({"aten.linear": 4}), calibration()[:1])
    assert set(quantized_ops(made)) == {"quantized_decomposed.dequantize_per_channel.default"}
    stored = [
        t for t in [*made.state_dict.values(), *made.constants.values()] if getattr(t, "dtype", None) == torch.int8
    ]
    largest = {tuple(t.shape): int(t.abs().max()) for t in stored}
    assert largest[256, 128] <= 8
    assert largest[8, 3, 3, 3] == 127


class _OwnWeights(nn.Module):
    """A float weight that is quantised in the graph, and a value quantised to fewer steps than int8 has."""

    def __init__(self) -> None:
        super().__init__()
        import torch.ao.quantization.fx._decomposed

        self.ops: Any = torch.ops.quantized_decomposed
        self.register_buffer("weight", torch.randn(3, 4))
        self.register_buffer("scale", torch.tensor([0.01, 0.02, 0.03]))
        self.register_buffer("zero", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.ops.quantize_per_tensor(x, 0.25, 1, -7, 7, torch.int8)
        value = self.ops.dequantize_per_tensor(small, 0.25, 1, -7, 7, torch.int8)
        stored = self.ops.quantize_per_channel(self.weight, self.scale, self.zero, 0, -127, 127, torch.int8)
        weight = self.ops.dequantize_per_channel(stored, self.scale, self.zero, 0, -127, 127, torch.int8)
        return torch.nn.functional.linear(value, weight)


@pytest.mark.parametrize("rewrite", ["quantization_constants", "quantization_bounds"])
def test_rewrites_of_quantised_programs_keep_their_values(rewrite: str) -> None:
    torch.manual_seed(0)
    network = _OwnWeights().eval()
    x = torch.randn(5, 4) * 3
    legal = legalize(torch.export.export(network, (x,)), [rewrite])
    assert torch.equal(legal.module()(x), network(x))
    names = [op_name(n) for n in legal.graph.nodes if n.op == "call_function"]
    if rewrite == "quantization_constants":
        assert "quantized_decomposed.quantize_per_channel.default" not in names, "the weight is stored as integers"
        assert any(t.dtype == torch.int8 for t in {**legal.state_dict, **legal.constants}.values())
        return
    (node,) = [n for n in legal.graph.nodes if "quantize_per_tensor" in n.name and "de" not in n.name]
    assert node.args[3:5] == (-128, 127)
    assert "aten.clamp.default" in names
