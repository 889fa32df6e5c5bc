"""Float inputs and outputs for a file whose inside is integers."""

from __future__ import annotations

from typing import Any

from targets.contract import Signature
from targets.tflite import flatbuffer
from targets.tflite.flatbuffer import DTYPES
from targets.tflite.shape_ops import ShapeBuilder


def float_borders(model: Any, signature: Signature) -> int:
    """Give every signature's inputs and outputs the program's float32 where the converter left the integers inside.

    The converter drops the quantisation of an input and the dequantisation of an output; they are put back.

    Returns:
        How many inputs and outputs were changed.
    """
    count = 0
    for definition in model.signatureDefs:
        graph = model.subgraphs[definition.subgraphIndex]
        for position, spec in enumerate(signature.inputs):
            count += spec.dtype == "float32" and _float_input(model, graph, position)
        for position, spec in enumerate(signature.outputs):
            count += spec.dtype == "float32" and _float_output(model, graph, position)
    return count


def wide_constants(model: Any, signature: Signature) -> int:
    """Give outputs that are int64 constants their type back: the converter writes small ones down as int32.

    Returns:
        How many outputs were changed.
    """
    import numpy as np

    count = 0
    for definition in model.signatureDefs:
        graph = model.subgraphs[definition.subgraphIndex]
        for position, spec in enumerate(signature.outputs):
            tensor = graph.tensors[int(graph.outputs[position])]
            data = flatbuffer.buffer_bytes(model.buffers[tensor.buffer])
            if spec.dtype != "int64" or tensor.type != DTYPES["int32"] or not data:
                continue
            values = np.frombuffer(data, np.int32).astype(np.int64)
            builder = ShapeBuilder(model, graph, {})
            wide = builder.raw_constant(values.tobytes(), flatbuffer.shape_of(tensor), DTYPES["int64"])
            graph.tensors[wide].name = flatbuffer.text(tensor.name).encode() + b"/wide"
            graph.outputs[position] = wide
            count += 1
    return count


def _twin(builder: ShapeBuilder, graph: Any, index: int) -> int:
    """A float tensor of the same shape and name."""
    tensor = graph.tensors[index]
    twin = builder.tensor(flatbuffer.shape_of(tensor), DTYPES["float32"], signature=tensor.shapeSignature)
    graph.tensors[twin].name = tensor.name
    tensor.name = flatbuffer.text(tensor.name).encode() + b"/integers"
    return twin


def _float_input(model: Any, graph: Any, position: int) -> bool:
    inside = int(graph.inputs[position])
    if graph.tensors[inside].type != DTYPES["int8"]:
        return False
    builder = ShapeBuilder(model, graph, {})
    outside = _twin(builder, graph, inside)
    builder.op("QUANTIZE", [outside], inside, "QuantizeOptions")
    builder.finish()
    graph.inputs[position] = outside
    return True


def _float_output(model: Any, graph: Any, position: int) -> bool:
    inside = int(graph.outputs[position])
    if graph.tensors[inside].type != DTYPES["int8"]:
        return False
    builder = ShapeBuilder(model, graph, {})
    outside = _twin(builder, graph, inside)
    builder.op("DEQUANTIZE", [inside], outside, "DequantizeOptions")
    graph.operators = [*graph.operators, *builder.operators]
    graph.outputs[position] = outside
    return True
