"""Static 8-bit quantisation with ONNX Runtime's own quantiser: QuantizeLinear and DequantizeLinear pairs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.legalize.marks import Region
from targets.onnx_web.marks import mark_of
from targets.onnx_web.weights import drop_unused, weights

if TYPE_CHECKING:
    from targets.contract import Array

#: ops over a stored weight: computed in integers.
_WEIGHTED = ("Conv", "Gemm", "MatMul")
#: ops on several values that have integer kernels; all values must be integers already.
_COMBINING = ("Add", "Mul", "Concat")
#: ops that hand integers on.
_SHARING = (
    *("Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Reshape", "Transpose", "Squeeze", "Unsqueeze"),
    *("Flatten", "Resize", "Split"),
)


def integer_nodes(graph: Any, leave: Collection[str] = ()) -> list[Any]:
    """The nodes to compute in 8 bits: layers with stored weights, and what combines or hands on their values.

    A sum with a value that was never an integer stays float: an attention mask of -10,000 has a range in which nothing
    else is left of 8 bits. So do products of two computed values and all that feeds a normalisation.

    Args:
        leave: names of nodes that stay float. Every node must have a name of its own.
    """
    heavy = {w.node.name for w in weights(graph) if w.slot == 1}
    made: set[str] = set()
    found = []
    for node in graph.node:
        if node.name in leave:
            continue
        if node.op_type in _WEIGHTED and node.name in heavy:
            found.append(node)
            if node.op_type == "Conv":  # the others hand floats on, see NO_OUTPUT
                made.update(node.output)
        elif (node.op_type in _COMBINING and all(i in made for i in node.input)) or (
            node.op_type in _SHARING and node.input[0] in made
        ):
            found.append(node)
            made.update(node.output)
    return found


#: ops whose result is rounded to 8 bits only where an integer op reads it: their biases are added in float.
NO_OUTPUT = ("MatMul", "Gemm")


@contextmanager
def _quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def _reader(calls: Sequence[Mapping[str, Array]]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Calls(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(calls)

        def get_next(self) -> Any:
            found = next(self._left, None)
            return None if found is None else dict(found)

    return Calls()


def static(model: Any, calls: Sequence[Mapping[str, Array]], region: Region) -> Any:
    """Weights and activations in 8 bits, ranged by calibration: weights symmetric per channel, stored unsigned.

    Args:
        calls: input name -> array, one entry per call.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    chosen = integer_nodes(model.graph, {n.name for n in model.graph.node if mark_of(n) in region.values})
    if not chosen:
        return model
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        quantize_static(
            model,
            path,
            _reader(calls),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=sorted({n.op_type for n in chosen}),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QUInt8,
            nodes_to_quantize=[n.name for n in chosen],
            extra_options={
                "WeightSymmetric": True,
                "ActivationSymmetric": False,
                "OpTypesToExcludeOutputQuantization": list(NO_OUTPUT),
            },
        )
        quantized = onnx.load(path)
    keep_values(quantized, region)
    return quantized


def keep_values(model: Any, region: Region) -> None:
    """Take the quantisation off every value that stays float."""
    kept = {name for node in model.graph.node if mark_of(node) in region.values for name in node.output}
    quantize = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    floats = {
        n.output[0]: quantize[n.input[0]]
        for n in model.graph.node
        if n.op_type == "DequantizeLinear" and quantize.get(n.input[0]) in kept
    }
    outputs = {v.name for v in model.graph.output}
    for node in model.graph.node:
        node.input[:] = [floats.get(n, n) for n in node.input]
    used = {n for node in model.graph.node for n in node.input} | outputs
    nodes = [n for n in model.graph.node if n.op_type != "DequantizeLinear" or used & set(n.output)]
    used = {n for node in nodes for n in node.input} | outputs
    nodes = [n for n in nodes if n.op_type != "QuantizeLinear" or used & set(n.output)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    drop_unused(model)
