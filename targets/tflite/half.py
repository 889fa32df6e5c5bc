"""Half-precision weights: stored as float16, widened once when the file is loaded; inputs and outputs stay float32."""

from __future__ import annotations

from typing import Any

from targets.tflite import flatbuffer
from targets.tflite.flatbuffer import DTYPES
from targets.tflite.shape_ops import ShapeBuilder

#: Constants with fewer elements stay float32: biases and scales, whose size doesn't matter and whose error adds up.
_FEWEST = 64
#: Largest finite float16.
_MAX = 65504.0


def weights_to_float16(model: Any) -> int:
    """Replace float32 weights by float16 ones and a ``DEQUANTIZE`` each, as LiteRT and XNNPACK expect them.

    Weights with a magnitude that float16 cannot hold stay as they are.

    Returns:
        How many weights were replaced.
    """
    import numpy as np

    count = 0
    for graph in model.subgraphs:
        builder = ShapeBuilder(model, graph, {})
        read = {int(t) for o in graph.operators for t in o.inputs if t >= 0}
        for index in sorted(read):
            tensor = graph.tensors[index]
            data = flatbuffer.buffer_bytes(model.buffers[tensor.buffer])
            if tensor.type != DTYPES["float32"] or len(data) < 4 * _FEWEST:
                continue
            values = np.frombuffer(data, np.float32)
            if not bool((np.abs(values) <= _MAX).all()):
                continue
            shape = flatbuffer.shape_of(tensor)
            narrow = builder.raw_constant(values.astype(np.float16).tobytes(), shape, DTYPES["float16"])
            tensor.buffer = 0
            builder.op("DEQUANTIZE", [narrow], index)
            count += 1
        builder.finish()
    return count
