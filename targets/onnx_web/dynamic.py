"""Activations that are ranged at run time: each is quantised as it comes, multiplied in integers, and scaled back.

ONNX Runtime's own ``quantize_dynamic`` gives a convolution one weight scale for all its channels; here each output
channel has its own, and weights are unsigned (``targets.onnx_web.weights`` says why). The patterns are the ones that
its optimiser fuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.marks import Region
from targets.onnx_web.marks import mark_of
from targets.onnx_web.weights import ZERO_POINT, attribute, drop_unused, quantize, weights

if TYPE_CHECKING:
    from targets.contract import Array
    from targets.onnx_web.weights import Weight


class _Emitter:
    """Nodes and constants that take the place of others, in the order of the graph."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self._quantized: dict[str, tuple[str, str, str]] = {}

    def constant(self, name: str, value: Array) -> str:
        from onnx import numpy_helper

        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, inputs: list[str], output: str, like: Any, **attributes: Any) -> str:
        import onnx

        made = onnx.helper.make_node(op, inputs, [output], output, **attributes)
        made.metadata_props.extend(like.metadata_props)
        self.nodes.append(made)
        return output

    def quantized(self, value: str, like: Any) -> tuple[str, str, str]:
        """Names of the bytes, the scale and the zero point of ``value``; made once for all who read it."""
        import onnx

        if value not in self._quantized:
            names = (f"{value}__u8", f"{value}__scale", f"{value}__zero")
            made = onnx.helper.make_node("DynamicQuantizeLinear", [value], list(names), names[0])
            made.metadata_props.extend(like.metadata_props)
            self.nodes.append(made)
            self._quantized[value] = names
        return self._quantized[value]


def _possible(weight: Weight, floats: set[str]) -> bool:
    node = weight.node
    if weight.slot != 1 or node.input[0] in floats:
        return False
    if node.op_type == "Gemm":
        factors = [a.f for a in node.attribute if a.name in ("alpha", "beta")]
        return all(f == 1 for f in factors) and not attribute(node, "transA", 0)
    return node.op_type == "Conv" or (node.op_type == "MatMul" and len(weight.tensor.dims) == 2)


def dynamic(model: Any, region: Region) -> None:
    """Compute convolutions and matrix products with a constant weight in integers, in place."""
    floats = {name for n in model.graph.node if mark_of(n) in region.values for name in n.output}
    out = _Emitter(model.graph)
    by_node = {id(w.node): w for w in weights(model.graph) if _possible(w, floats)}
    for node in model.graph.node:
        weight = by_node.get(id(node))
        if weight is None or mark_of(node) in region.ops:
            out.nodes.append(node)
        else:
            _replace(out, weight)
    del model.graph.node[:]
    model.graph.node.extend(out.nodes)
    drop_unused(model)


def _replace(out: _Emitter, weight: Weight) -> None:
    """One product in integers: ``x @ w + b`` is ``(xq - xz) @ (wq - 128) * (x scale * w scale) + b``."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    node, result = weight.node, weight.node.output[0]
    values, axis = numpy_helper.to_array(weight.tensor), weight.axis
    if node.op_type == "Gemm" and axis == 0:
        values, axis = values.T, 1
    steps, scale = quantize(values, axis)
    spread = [1, -1] + [1] * (values.ndim - 2) if node.op_type == "Conv" else [-1]
    stored = out.constant(f"{result}__w", np.ascontiguousarray(steps))
    w_scale = out.constant(f"{result}__w_scale", scale.reshape(spread))
    w_zero = out.constant(f"{result}__w_zero", np.array(ZERO_POINT, np.uint8))
    x, x_scale, x_zero = out.quantized(node.input[0], node)
    integer = "ConvInteger" if node.op_type == "Conv" else "MatMulInteger"
    kept = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} if node.op_type == "Conv" else {}
    sums = out.node(integer, [x, stored, x_zero, w_zero], f"{result}__sums", node, **kept)
    cast = out.node("Cast", [sums], f"{result}__cast", node, to=onnx.TensorProto.FLOAT)
    factor = out.node("Mul", [x_scale, w_scale], f"{result}__factor", node)
    bias = node.input[2] if len(node.input) > 2 else ""
    out.node("Mul", [cast, factor], f"{result}__scaled" if bias else result, node)
    if not bias:
        return
    if node.op_type == "Conv":
        shape = out.constant(f"{result}__bias_shape", np.array(spread, np.int64))
        bias = out.node("Reshape", [bias, shape], f"{result}__bias", node)
    out.node("Add", [f"{result}__scaled", bias], result, node)
