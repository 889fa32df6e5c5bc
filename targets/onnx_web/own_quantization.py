"""Programs that bring their own quantisation: the exporter's 8-bit integers made unsigned.

ONNX Runtime's kernels for signed weights overflow on CPUs without VNNI (``targets.onnx_web.weights``). Integers and
zero points move up by 128 together, so every value stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from build.errors import LoweringError
from targets.onnx_web.model import graphs
from targets.onnx_web.weights import ZERO_POINT, drop_unused

_PAIR = ("QuantizeLinear", "DequantizeLinear")


def unsigned(model: Any) -> None:
    """Turn every signed 8-bit quantisation into the unsigned one that means the same, in place.

    Raises:
        LoweringError: a zero point is computed by the graph, or an integer goes through an op of another kind.
    """
    for graph in graphs(model.graph):
        _Unsigned(graph).run()
    drop_unused(model)


class _Unsigned:
    """One graph: its constants, and which of its values are signed bytes."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._constants = dict(_constants(graph))
        self._made: set[str] = set()

    def run(self) -> None:
        import numpy as np

        signed: set[str] = set()
        for node in self._graph.node:
            if node.op_type not in _PAIR:
                if signed & set(node.input):
                    self._pass_on(node, signed)
                continue
            zero = self._zero_point(node)
            data = self._constants.get(node.input[0])
            if zero.dtype != np.int8:
                continue
            node.input[2] = self._shifted(node.input[2], zero)
            if node.op_type == "QuantizeLinear":
                signed.add(node.output[0])
            elif data is not None:
                node.input[0] = self._shifted(node.input[0], data)

    def _zero_point(self, node: Any) -> Any:
        import numpy as np

        if len(node.input) < 3:
            data = self._constants.get(node.input[0], np.zeros((), np.uint8))
            if data.dtype != np.int8:
                return np.zeros((), np.uint8)
            name = f"{node.output[0]}__zero"
            self._constants[name] = np.zeros(self._constants[node.input[1]].shape, np.int8)
            node.input.append(name)
        zero = self._constants.get(node.input[2])
        if zero is None:
            raise LoweringError(
                f"the program computes a zero point at run time ('{node.input[2]}'), and ONNX needs a constant",
                op="quantize",
                remedy="Quantise the model with fixed ranges.",
            )
        return zero

    def _shifted(self, name: str, values: Any) -> str:
        import numpy as np
        from onnx import numpy_helper

        new = f"{name}__unsigned"
        if new not in self._made:
            self._made.add(new)
            moved = (values.astype(np.int16) + ZERO_POINT).astype(np.uint8)
            self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(moved), new))
        return new

    def _pass_on(self, node: Any, signed: set[str]) -> None:
        if node.op_type not in ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "MaxPool"):
            raise LoweringError(
                f"the program computes {node.op_type} on quantised integers, which has no unsigned counterpart",
                op=node.op_type,
                remedy="Dequantise before this op.",
            )
        signed.update(node.output)


def _constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of every initializer and Constant."""
    from onnx import numpy_helper

    for tensor in graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in graph.node:
        if node.op_type == "Constant":
            found = next((a.t for a in node.attribute if a.name == "value"), None)
            if found is not None:
                yield node.output[0], numpy_helper.to_array(found)
