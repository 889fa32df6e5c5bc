"""The weights of an ONNX graph: which ops carry them, and storing them as 8-bit integers behind a DequantizeLinear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from targets.contract import Arithmetic
from targets.onnx_web.marks import mark_of
from targets.onnx_web.model import graphs

if TYPE_CHECKING:
    from targets.contract import Array

#: op -> which inputs may be weights.
CARRIERS: dict[str, tuple[int, ...]] = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gemm": (1, 0),
    "MatMul": (1, 0),
    "Gather": (0,),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
}

#: the zero point of symmetric weights that are stored unsigned. CPUs without VNNI multiply unsigned by unsigned bytes
#: exactly, but add pairs of unsigned-by-signed products in 16 bits, which full 8-bit weights overflow.
ZERO_POINT = 128


@dataclass(frozen=True)
class Weight:
    """Input ``slot`` of ``node`` reads the initializer ``tensor``; ``axis`` is that of its output channels."""

    node: Any
    slot: int
    tensor: Any
    axis: int


def attribute(node: Any, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _axis(node: Any, slot: int, rank: int) -> int:
    match node.op_type:
        case "ConvTranspose":
            return 1 if attribute(node, "group", 1) == 1 else 0
        case "Gemm" if slot == 1:
            return 0 if attribute(node, "transB", 0) else 1
        case "Gemm":
            return 1 if attribute(node, "transA", 0) else 0
        case "MatMul":
            return max(rank - 1 - (1 - slot), 0)
        case "LSTM" | "GRU" | "RNN":
            return 1
    return 0


def weights(graph: Any) -> Iterator[Weight]:
    """Every float weight of the graph's ops."""
    import onnx

    floats = {t.name: t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        for slot in CARRIERS.get(node.op_type, ()):
            tensor = floats.get(node.input[slot]) if slot < len(node.input) else None
            if tensor is not None and len(tensor.dims) > 1:
                yield Weight(node, slot, tensor, _axis(node, slot, len(tensor.dims)))


def float_ops(model: Any, leave_out: Collection[str] = ()) -> dict[str, int]:
    """Op -> count of those with a float weight, ops that come from a node in ``leave_out`` not counted."""
    found: Counter[str] = Counter()
    for graph in graphs(model.graph):
        for node in {id(w.node): w.node for w in weights(graph) if mark_of(w.node) not in leave_out}.values():
            found[node.op_type] += 1
    return dict(sorted(found.items()))


#: ops that multiply in integers, or are fused into one that does where their operands are dequantised.
_INTEGER = ("ConvInteger", "MatMulInteger")
_FUSED = ("Conv", "Gemm", "MatMul")


def arithmetic(model: Any, leave_out: Collection[str] = ()) -> Arithmetic:
    """What computes in integers, told by what its operands are; a table is only looked up, and computes nothing."""
    integers = 0
    floats: Counter[str] = Counter()
    for graph in graphs(model.graph):
        stored = {t.name for t in graph.initializer}
        made = {name: n for n in graph.node for name in n.output}
        widened = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
        values = {n for n in widened if made[n].input[0] not in stored}
        for node in graph.node:
            slots = CARRIERS.get(node.op_type, ())
            if node.op_type in _INTEGER or (node.op_type in _FUSED and set(node.input[:2]) <= widened):
                integers += bool(node.op_type in _INTEGER or values & set(node.input[:2]))
            elif node.op_type != "Gather" and mark_of(node) not in leave_out:
                floats[node.op_type] += any(node.input[i] in widened - values for i in slots if i < len(node.input))
    return Arithmetic(integers=integers, floats={op: n for op, n in sorted(floats.items()) if n})


def weight_bits(model: Any) -> dict[int, dict[str, int]]:
    """Bits -> op -> count of the ops whose stored weights have so many."""
    found: dict[int, Counter[str]] = {4: Counter(), 8: Counter()}
    for graph in graphs(model.graph):
        widened = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
        for node in graph.node:
            slots = [i for i in CARRIERS.get(node.op_type, ()) if i < len(node.input)]
            if node.op_type == "MatMulNBits":
                found[4]["MatMul"] += 1
            elif any(node.input[i] in widened for i in slots):
                found[8][node.op_type] += 1
    return {bits: dict(sorted(ops.items())) for bits, ops in found.items()}


def quantize(values: Array, axis: int) -> tuple[Array, Array]:
    """Unsigned bytes around ``ZERO_POINT``, and a scale per slice along ``axis``: symmetric, rounded half to even."""
    import numpy as np

    others = tuple(i for i in range(values.ndim) if i != axis)
    most = np.abs(values).max(axis=others)
    scale = np.where(most > 0, most / 127, 1).astype(np.float32)
    shape = [-1 if i == axis else 1 for i in range(values.ndim)]
    steps = np.clip(np.rint(values / scale.reshape(shape)), -127, 127)
    return (steps + ZERO_POINT).astype(np.uint8), scale


def store_small(model: Any, keep: Collection[str]) -> None:
    """Store every weight in 8 bits, dequantised when the session starts; those that a node in ``keep`` reads stay."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    for graph in graphs(model.graph):
        made: dict[tuple[str, int], str] = {}
        new: list[Any] = []
        for weight in list(weights(graph)):
            if mark_of(weight.node) in keep:
                continue
            key = (weight.tensor.name, weight.axis)
            if key not in made:
                steps, scale = quantize(numpy_helper.to_array(weight.tensor), weight.axis)
                base = f"{weight.tensor.name}__q{weight.axis}"
                zero = np.full(scale.shape, ZERO_POINT, np.uint8)
                parts = {base: steps, f"{base}_scale": scale, f"{base}_zero": zero}
                graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in parts.items())
                made[key] = f"{base}_float"
                new.append(
                    onnx.helper.make_node("DequantizeLinear", list(parts), [made[key]], made[key], axis=weight.axis)
                )
            weight.node.input[weight.slot] = made[key]
        nodes = [*new, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    drop_unused(model)


def drop_unused(model: Any) -> None:
    """Remove the initializers that nothing reads any more."""
    used = {n for g in graphs(model.graph) for node in g.node for n in node.input} | {
        v.name for v in model.graph.output
    }
    used |= {v.name for g in graphs(model.graph) for v in g.output}
    for graph in graphs(model.graph):
        kept = [t for t in graph.initializer if t.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)
