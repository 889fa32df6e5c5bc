"""Matrix products that LiteRT's XNNPACK delegate gets wrong after a call with other sizes, put so that it does not."""

from __future__ import annotations

from typing import Any

from targets.tflite import flatbuffer
from targets.tflite.flatbuffer import DTYPES
from targets.tflite.shape_ops import ShapeBuilder


def part_products_from_dequantize(model: Any) -> int:
    """Multiply by one what a symmetric DEQUANTIZE hands to a BATCH_MATMUL as its second operand, where sizes change.

    The delegate takes such a pair together, as a product with int8 weights and one scale for each column, and the
    scales are those of the first call's columns. Measured on ai-edge-litert 2.3.0 for ``[b, m, k] x [b, k, n]``: an
    interpreter whose first call has ``n`` columns gives garbage for more than ``k n`` (never at zero points other
    than 0, without the delegate, or for ``b`` 1). The product by one is exact and keeps the two apart.

    Returns:
        How many products were parted.
    """
    return sum(_part(model, graph) for graph in model.subgraphs)


def _part(model: Any, graph: Any) -> int:
    producer = {int(t): o for o in graph.operators for t in o.outputs}
    builder = ShapeBuilder(model, graph, {})
    operators: list[Any] = []
    count = 0
    for operator in graph.operators:
        if flatbuffer.opcode_name(model, operator) == "BATCH_MATMUL":
            second = int(operator.inputs[1])
            dynamic = -1 in flatbuffer.declared_shape(graph.tensors[second])
            if dynamic and _is_symmetric(model, graph, producer.get(second)):
                operator.inputs[1] = _by_one(builder, graph, second)
                operators += builder.operators
                builder.operators = []
                count += 1
        operators.append(operator)
    graph.operators = operators
    return count


def _is_symmetric(model: Any, graph: Any, operator: Any) -> bool:
    """Does it dequantise integers whose zero point is 0?"""
    if operator is None or flatbuffer.opcode_name(model, operator) != "DEQUANTIZE":
        return False
    quantization = graph.tensors[int(operator.inputs[0])].quantization
    return quantization is not None and not any(quantization.zeroPoint if quantization.zeroPoint is not None else ())


def _by_one(builder: ShapeBuilder, graph: Any, index: int) -> int:
    """The product of a float32 tensor and one."""
    tensor = graph.tensors[index]
    one = builder.constant(1.0, "float32")
    result = builder.tensor(flatbuffer.shape_of(tensor), DTYPES["float32"], signature=tensor.shapeSignature)
    return builder.op("MUL", [index, one], result, "MulOptions")
