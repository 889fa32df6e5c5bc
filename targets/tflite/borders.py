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
