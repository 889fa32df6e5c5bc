"""Annotations for PT2E that fit any integer backend: which weights and which values become 8-bit integers.

A value becomes an integer where an integer op makes it: a convolution, a linear layer, or a sum, product or
concatenation whose operands are integers already. What floats feed (attention masks, the inside of a softmax or a norm)
stays float: an 8-bit range over a mask of -10,000 would hold nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from build.quantize.regions import float_values, packet
from build.quantize.weighted import WEIGHTED, channel_axis, weight_of

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_KEY = "quantization_annotation"

#: Activations that a backend computes as the bounds of the op before.
_BOUNDS = frozenset(("aten.relu", "aten.relu_", "aten.relu6", "aten.hardtanh", "aten.hardtanh_"))
#: Ops on several integers that have integer kernels.
_COMBINING = frozenset(("aten.add", "aten.add_", "aten.mul", "aten.mul_", "aten.cat"))
#: Ops that keep their input's scale.
_SHARING = frozenset(
    f"aten.{op}"
    for op in """
        relu relu_ relu6 hardtanh hardtanh_ max_pool2d avg_pool2d adaptive_avg_pool2d mean view reshape _unsafe_view
        flatten squeeze unsqueeze permute transpose slice dropout contiguous clone
    """.split()  # noqa: SIM905
)


def _is_float(node: Node) -> bool:
    import torch

    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _is_integer_op(node: Node) -> bool:
    """A convolution or linear layer over a stored weight."""
    weight = weight_of(node)
    return weight is not None and weight.op == "get_attr" and packet(node) != "aten.embedding" and _is_float(node)


class Integers:
    """Which values of a graph will be integers, told by the ops that make them."""

    def __init__(self, graph: Graph, keep: Iterable[str] = ()) -> None:
        """``keep``: names of nodes that stay float, see :mod:`build.quantize.regions`."""
        self._floats = float_values(graph, keep)
        self._found: set[Node] = set()
        for node in graph.nodes:
            if node.op == "call_function" and node.name not in self._floats and self._made(node):
                self._found.add(node)

    def _made(self, node: Node) -> bool:
        if _is_integer_op(node):
            # An integer kernel reads integers: behind a value that stays float there is none.
            return value_of(node).name not in self._floats
        if packet(node) in _COMBINING:
            operands = [n for n in node.all_input_nodes if n.op != "get_attr"]
            scalars = all(n.meta["val"].numel() == 1 for n in node.all_input_nodes if n.op == "get_attr")
            return _is_float(node) and scalars and bool(operands) and all(n in self._found for n in operands)
        return packet(node) in _SHARING and _is_float(node) and node.args[0] in self._found

    def __contains__(self, node: Node) -> bool:
        return node in self._found


def value_of(node: Node) -> Node:
    """The operand of a weighted op that is not its weight or bias."""
    return next(n for n in node.args[1 if packet(node) == "aten.addmm" else 0 :] if n is not weight_of(node))


def is_annotated(node: Node) -> bool:
    """Whether a quantizer has spoken about the node."""
    return node.meta.get(_KEY) is not None


def last_of(node: Node) -> Node:
    """The op whose value leaves the integer kernel: the activation behind ``node`` where it has nothing else behind."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_function" and packet(users[0]) in _BOUNDS else node


def weight_spec(axis: int, bits: int = 8) -> Any:
    """Symmetric signed integers with a scale for every slice along ``axis``."""
    import torch
    from torchao.quantization.pt2e import PerChannelMinMaxObserver
    from torchao.quantization.pt2e.quantizer import QuantizationSpec

    top = 2 ** (bits - 1) - 1
    return QuantizationSpec(
        dtype=torch.int8,
        # XNNPACK knows 4-bit weights by their whole range.
        quant_min=-top if bits == 8 else -top - 1,
        quant_max=top,
        qscheme=torch.per_channel_symmetric,
        ch_axis=axis,
        observer_or_fake_quant_ctr=PerChannelMinMaxObserver,
    )


def value_spec() -> Any:
    """Signed 8-bit integers with one scale and zero point, from the histogram of the calibration values."""
    import torch
    from torchao.quantization.pt2e import HistogramObserver
    from torchao.quantization.pt2e.quantizer import QuantizationSpec

    return QuantizationSpec(
        dtype=torch.int8,
        quant_min=-128,
        quant_max=127,
        qscheme=torch.per_tensor_affine,
        # The converters refuse scales that are next to nothing (a value that is always zero).
        observer_or_fake_quant_ctr=HistogramObserver.with_args(eps=2**-12),
    )


def static_quantizer(keep: Iterable[str] = ()) -> Any:
    """A torchao quantizer for 8-bit weights and calibrated 8-bit values; ``keep``: names of nodes that stay float."""
    from torchao.quantization.pt2e.quantizer import Quantizer

    class Static(Quantizer):
        def annotate(self, model: GraphModule) -> GraphModule:
            annotate_static(model.graph, keep, value_spec())
            return model

        def validate(self, model: GraphModule) -> None:
            """Nothing to check: every annotation is made here."""

    return Static()


def annotate_static(graph: Graph, keep: Iterable[str], spec: Any) -> None:
    """Annotate every integer op of the graph that has no annotation yet; ``spec``: how values are quantised."""
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec

    integers = Integers(graph, keep)

    def annotate(node: Node, inputs: dict[Any, Any], output: Any) -> None:
        node.meta[_KEY] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)

    for node in graph.nodes:
        if node.op != "call_function" or node not in integers or is_annotated(node):
            continue
        if _is_integer_op(node):
            weight = weight_of(node)
            inputs = {value_of(node): spec, weight: weight_spec(channel_axis(node))}
        elif packet(node) == "aten.cat":
            first, *others = node.all_input_nodes
            shared = SharedQuantizationSpec((first, node))
            annotate(node, {first: spec, **dict.fromkeys(others, shared)}, shared)
            continue
        elif packet(node) in _COMBINING:
            inputs = dict.fromkeys(node.all_input_nodes, spec)
        else:
            shared = SharedQuantizationSpec((node.args[0], node))
            annotate(node, {node.args[0]: spec}, shared)
            continue
        last = last_of(node)
        annotate(node, inputs, spec if last is node else None)
        if last is not node:
            annotate(last, {}, spec)


def weight_quantizer(bits: Mapping[str, int] | None = None, *, leave: Iterable[str] = ()) -> Any:
    """A torchao quantizer for weights alone, values staying float.

    Args:
        bits: op (``aten.linear``) -> bits per stored weight, where it is not 8.
        leave: ops whose weights are left alone.
    """
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer

    of = bits or {}
    wanted = set(WEIGHTED) - set(leave)

    class WeightsAlone(Quantizer):
        def annotate(self, model: GraphModule) -> GraphModule:
            for node in model.graph.nodes:
                weight = weight_of(node)
                if weight is None or weight.op != "get_attr" or packet(node) not in wanted or not _is_float(weight):
                    continue
                if _KEY in node.meta and weight in node.meta[_KEY].input_qspec_map:
                    continue
                inputs = {weight: weight_spec(channel_axis(node), of.get(packet(node), 8))}
                node.meta[_KEY] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=None, _annotated=True)
            return model

        def validate(self, model: GraphModule) -> None:
            """Nothing to check: every annotation is made here."""

    return WeightsAlone()
