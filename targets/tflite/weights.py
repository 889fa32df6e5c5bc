"""Weights stored as small integers in the file, with a scale for every output channel.

Three ways to read them: an op over floats gets them through a ``DEQUANTIZE``, which LiteRT computes once; an op with a
kernel for floats and integer weights ranges its floats at run time (int8-dynamic); a table of embeddings is scaled as
it is looked up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from targets.contract import Arithmetic
from targets.tflite import flatbuffer
from targets.tflite.flatbuffer import DTYPES
from targets.tflite.shape_ops import ShapeBuilder

#: Op -> (position of its weight, the weight's dimension of output channels).
WEIGHTED: dict[str, tuple[int, int]] = {
    "CONV_2D": (1, 0),
    "CONV_3D": (1, 4),
    "DEPTHWISE_CONV_2D": (1, 3),
    "TRANSPOSE_CONV": (1, 0),
    "FULLY_CONNECTED": (1, 0),
    "BATCH_MATMUL": (1, -1),
    "EMBEDDING_LOOKUP": (1, 0),
    "GATHER": (0, 0),
}
#: Ops with kernels for float values and 8-bit weights, and the version of their kernel that has scales per channel
#: (``op_version.cc`` of LiteRT). A depthwise convolution has one too, but XNNPACK doesn't take it.
_HYBRID = {"CONV_2D": 5, "FULLY_CONNECTED": 12}
#: The version of ``EMBEDDING_LOOKUP`` with a scale per row, and of ``DEQUANTIZE`` with a scale per channel (by bits).
_LOOKUP, _DEQUANTIZE = 4, {8: 5, 4: 6}
#: Where an op has its values, when that is not first.
_VALUES = {"TRANSPOSE_CONV": 2}
#: Ops whose weights may have four bits. A convolution's few weights per channel do not bear so few; nor does a table of
#: embeddings, whose rows have one scale here and no later layer to even their errors out (MiniLM: 0.89 of 1, not 0.90).
_FOUR_BITS = ("FULLY_CONNECTED",)
#: ``TensorType.INT4`` of the schema: two to a byte, the first in the lower half.
_INT4 = 17
#: How names of tensors begin that are not the program's nodes'.
_NOT_NODES = ("arith.", "serving_", "edgeport")


def weight_position(model: Any, graph: Any, operator: Any) -> int | None:
    """Where the op has a stored weight of at least two dimensions; None when it has none."""
    name = flatbuffer.opcode_name(model, operator)
    if name not in WEIGHTED:
        return None
    position = WEIGHTED[name][0]
    tensor = graph.tensors[int(operator.inputs[position])]
    stored = bool(flatbuffer.buffer_bytes(model.buffers[tensor.buffer]))
    return position if stored and len(flatbuffer.shape_of(tensor)) > 1 else None


def names_of(graph: Any, operator: Any) -> set[str]:
    """Names of the program's nodes that an operator was made of.

    The converter joins them with semicolons in the names of what the operator makes. It renames a graph's outputs;
    then the names of its weight and bias tell.
    """
    for tensors in (operator.outputs, operator.inputs[1:]):
        found = {part for t in tensors if t >= 0 for part in flatbuffer.text(graph.tensors[int(t)].name).split(";")}
        found = {part for part in found if part and not part.isdigit() and not part.startswith(_NOT_NODES)}
        if found:
            return found
    return set()


def _operators(model: Any) -> Iterator[tuple[Any, Any, int]]:
    """Every operator with a stored weight: graph, operator, position of the weight."""
    for graph in model.subgraphs:
        for operator in list(graph.operators):
            position = weight_position(model, graph, operator)
            if position is not None:
                yield graph, operator, position


def unquantized(model: Any, keep: Collection[str]) -> dict[str, int]:
    """Op name -> count of the ops whose stored weight is floats, those made of nodes in ``keep`` left out."""
    found: Counter[str] = Counter()
    floats = (DTYPES["float32"], DTYPES["float16"])
    for graph, operator, position in _operators(model):
        if graph.tensors[int(operator.inputs[position])].type in floats and not names_of(graph, operator) & set(keep):
            found[flatbuffer.opcode_name(model, operator)] += 1
    return dict(sorted(found.items()))


def arithmetic(model: Any, keep: Collection[str], *, dynamic: bool) -> Arithmetic:
    """What computes in integers; a table is only looked up, and computes nothing.

    Args:
        dynamic: an op over floats and 8-bit weights ranges its floats at run time. (Each that reads such weights as
            they are does; others read them through a ``DEQUANTIZE``.)
    """
    integers = 0
    floats: Counter[str] = Counter()
    for graph in model.subgraphs:
        made = {int(t): o for o in graph.operators for t in o.outputs}
        for operator in graph.operators:
            name = flatbuffer.opcode_name(model, operator)
            if name not in WEIGHTED or name in ("EMBEDDING_LOOKUP", "GATHER"):
                continue
            weight = int(operator.inputs[WEIGHTED[name][0]])
            if weight_position(model, graph, operator) is not None:
                value = graph.tensors[int(operator.inputs[_VALUES.get(name, 0)])]
                small = graph.tensors[weight].type == DTYPES["int8"]
                integers += small and (dynamic or value.type == DTYPES["int8"])
            elif weight in made and _widens(model, graph, made[weight]) and not names_of(graph, operator) & set(keep):
                floats[name] += 1
    return Arithmetic(integers=integers, floats=dict(sorted(floats.items())))


def _widens(model: Any, graph: Any, operator: Any) -> bool:
    """Whether an op makes floats of a stored weight of integers."""
    stored = graph.tensors[int(operator.inputs[0])]
    named = flatbuffer.opcode_name(model, operator) == "DEQUANTIZE"
    return named and bool(flatbuffer.buffer_bytes(model.buffers[stored.buffer]))


def quantize_weights(model: Any, keep: Collection[str], *, dynamic: bool, bits: int = 8) -> None:
    """Store the float weights as integers, except those of ops made of nodes in ``keep``.

    Args:
        model: a ``ModelT``, changed in place.
        keep: names of the program's nodes.
        dynamic: let ops that can range their values at run time.
        bits: of the weights of linear layers, 8 or 4; others have 8.
    """
    for graph in model.subgraphs:
        _Weights(model, graph, set(keep), dynamic, bits).quantize()


class _Weights:
    def __init__(self, model: Any, graph: Any, keep: set[str], dynamic: bool, bits: int) -> None:
        self._model, self._graph, self._keep, self._dynamic, self._bits = model, graph, keep, dynamic, bits
        self._builder = ShapeBuilder(model, graph, {})
        self._stored: dict[tuple[int, int, int], int] = {}
        self._widened: dict[int, int] = {}

    def quantize(self) -> None:
        for operator in list(self._graph.operators):
            position = weight_position(self._model, self._graph, operator)
            if position is None or names_of(self._graph, operator) & self._keep:
                continue
            tensor = self._graph.tensors[int(operator.inputs[position])]
            if tensor.type == DTYPES["float32"]:
                self._replace(operator, position)
        self._builder.finish()
        self._drop_unread()

    def _drop_unread(self) -> None:
        """Let go of the floats that nothing reads any more: what no tensor refers to is not written."""
        read = {int(t) for o in self._graph.operators for t in o.inputs} | {int(t) for t in self._graph.outputs}
        for index, _, _ in self._stored:
            if index not in read:
                self._graph.tensors[index].buffer = 0

    def _replace(self, operator: Any, position: int) -> None:
        name = flatbuffer.opcode_name(self._model, operator)
        index = int(operator.inputs[position])
        rank = len(flatbuffer.shape_of(self._graph.tensors[index]))
        axis = WEIGHTED[name][1] % rank
        if name == "BATCH_MATMUL" and operator.builtinOptions is not None and operator.builtinOptions.adjY:
            axis = rank - 2
        bits = self._bits if name in _FOUR_BITS else 8
        stored = self._integers(index, axis, bits)
        if name == "EMBEDDING_LOOKUP":
            operator.opcodeIndex = self._builder.opcode(name, version=_LOOKUP)
        elif self._dynamic and name in _HYBRID and not self._grouped(operator, name):
            operator.opcodeIndex = self._builder.opcode(name, version=_HYBRID[name])
            if name == "FULLY_CONNECTED" and operator.builtinOptions is not None:
                operator.builtinOptions.asymmetricQuantizeInputs = False
        else:
            stored = self._widen(stored, index, bits)
        operator.inputs[position] = stored

    def _grouped(self, operator: Any, name: str) -> bool:
        """LiteRT's convolution in groups has no such kernel."""
        if name != "CONV_2D":
            return False
        value, weight = (flatbuffer.shape_of(self._graph.tensors[int(t)]) for t in operator.inputs[:2])
        return bool(value[3] != weight[3])

    def _integers(self, index: int, axis: int, bits: int) -> int:
        import numpy as np
        from ai_edge_litert import schema_py_generated as schema

        if (index, axis, bits) in self._stored:
            return self._stored[index, axis, bits]
        tensor = self._graph.tensors[index]
        shape = flatbuffer.shape_of(tensor)
        data = flatbuffer.buffer_bytes(self._model.buffers[tensor.buffer])
        integers, scales = _round(np.frombuffer(data, np.float32).reshape(shape), axis, bits)
        content, kind = (integers.tobytes(), DTYPES["int8"]) if bits == 8 else (_packed(integers), _INT4)
        new = self._builder.raw_constant(content, shape, kind)
        made = self._graph.tensors[new]
        made.name = flatbuffer.text(tensor.name).encode()
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale = scales
        made.quantization.zeroPoint = np.zeros(len(scales), np.int64)
        made.quantization.quantizedDimension = axis
        self._stored[index, axis, bits] = new
        return new

    def _widen(self, stored: int, index: int, bits: int) -> int:
        if stored not in self._widened:
            wide = self._builder.tensor(flatbuffer.shape_of(self._graph.tensors[index]), DTYPES["float32"])
            self._builder.op("DEQUANTIZE", [stored], wide, "DequantizeOptions", version=_DEQUANTIZE[bits])
            self._widened[stored] = wide
        return self._widened[stored]


def _round(values: Any, axis: int, bits: int) -> tuple[Any, Any]:
    """Symmetric integers and a scale for each slice along ``axis``; rounding to even, as PyTorch's."""
    import numpy as np

    top = 2 ** (bits - 1) - 1
    largest = np.abs(values).max(axis=tuple(a for a in range(values.ndim) if a != axis))
    # A slice of zeros has any scale; float32's own smallest normal number is no safe divisor.
    scales = np.maximum(largest / top, np.finfo(np.float32).eps).astype(np.float32)
    shape = [1] * values.ndim
    shape[axis] = len(scales)
    integers = np.clip(np.rint(values / scales.reshape(shape)), -top, top).astype(np.int8)
    return integers, scales


def _packed(integers: Any) -> bytes:
    """Two 4-bit integers to a byte."""
    import numpy as np

    flat = integers.reshape(-1).astype(np.uint8) & 15
    flat = np.append(flat, np.zeros(len(flat) % 2, np.uint8))
    return bytes(flat[0::2] | flat[1::2] << 4)
