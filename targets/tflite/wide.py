"""64-bit integers: products that litert-torch computes in 32 bits, put right; and where 32 bits remain, said so."""

from __future__ import annotations

from typing import Any

from targets.tflite import flatbuffer
from targets.tflite.flatbuffer import DTYPES
from targets.tflite.shape_ops import ShapeBuilder

_INT32, _INT64 = DTYPES["int32"], DTYPES["int64"]


def multiply_in_64_bits(model: Any) -> int:
    """Undo ``CAST to int32, MUL, CAST to int64``, which litert-torch makes of an int64 product.

    LiteRT's MUL kernel takes int64. A product is widened only when all that reads it widens it again.

    Returns:
        How many products were widened.
    """
    return sum(_widen(model, graph) for graph in model.subgraphs)


def _widen(model: Any, graph: Any) -> int:
    producer = {int(t): o for o in graph.operators for t in o.outputs}
    readers: dict[int, list[Any]] = {}
    for operator in graph.operators:
        for tensor in operator.inputs:
            readers.setdefault(int(tensor), []).append(operator)
    outputs = {int(t) for t in graph.outputs}
    builder = ShapeBuilder(model, graph, {})
    count = 0
    for operator in list(graph.operators):
        if flatbuffer.opcode_name(model, operator) != "MUL":
            continue
        product = int(operator.outputs[0])
        after = readers.get(product, [])
        if graph.tensors[product].type != _INT32 or product in outputs or not after:
            continue
        if not all(_is_cast(model, graph, o, _INT32, _INT64) for o in after):
            continue
        sources = [_wide_source(model, graph, builder, producer, int(t)) for t in operator.inputs]
        if any(s is None for s in sources):
            continue
        operator.inputs[0], operator.inputs[1] = sources
        graph.tensors[product].type = _INT64
        for cast in after:
            cast.builtinOptions.inDataType = _INT64
        count += 1
    builder.finish()
    return count


def _is_cast(model: Any, graph: Any, operator: Any, source: int, target: int) -> bool:
    if operator is None or flatbuffer.opcode_name(model, operator) != "CAST":
        return False
    ends = (graph.tensors[int(operator.inputs[0])].type, graph.tensors[int(operator.outputs[0])].type)
    if operator.builtinOptions is None and ends == (source, target):
        _state_cast(operator, source, target)
    return ends == (source, target)


def _state_cast(operator: Any, source: int, target: int) -> None:
    from ai_edge_litert import schema_py_generated as schema

    operator.builtinOptionsType = schema.BuiltinOptions.CastOptions
    operator.builtinOptions = schema.CastOptionsT()
    operator.builtinOptions.inDataType, operator.builtinOptions.outDataType = source, target


def _wide_source(model: Any, graph: Any, builder: ShapeBuilder, producer: dict[int, Any], tensor: int) -> int | None:
    """The int64 tensor that an int32 operand was cast from, or a constant operand in 64 bits."""
    import numpy as np

    cast = producer.get(tensor)
    if cast is not None:
        return int(cast.inputs[0]) if _is_cast(model, graph, cast, _INT64, _INT32) else None
    data = flatbuffer.buffer_bytes(model.buffers[graph.tensors[tensor].buffer])
    if not data:
        return None
    values = np.frombuffer(data, np.int32).astype(np.int64)
    return builder.raw_constant(values.tobytes(), flatbuffer.shape_of(graph.tensors[tensor]), _INT64)


def computes_in_32_bits(model: Any) -> bool:
    """Whether some 64-bit integer is still cut to 32 bits inside the graph (by a cast whose result is read)."""
    for graph in model.subgraphs:
        read = {int(t) for o in graph.operators for t in o.inputs} | {int(t) for t in graph.outputs}
        for operator in graph.operators:
            if _is_cast(model, graph, operator, _INT64, _INT32) and int(operator.outputs[0]) in read:
                return True
    return False
