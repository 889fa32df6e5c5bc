"""Weights of 4 bits: the contrib op MatMulNBits, which onnxruntime-web's CPU kernels compute in float arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.marks import Region
from targets.onnx_web.marks import mark_of
from targets.onnx_web.weights import attribute, drop_unused, weights

if TYPE_CHECKING:
    from targets.contract import Array
    from targets.onnx_web.weights import Weight

#: weights of one output channel that share a scale; ONNX Runtime's kernels take powers of two from 16 up.
BLOCK = 32


def pack(values: Array) -> tuple[Array, Array]:
    """``[K, N]`` weights as MatMulNBits stores them: bytes ``[N, blocks, BLOCK / 2]``, scales ``[N * blocks]``.

    Per block, the number of largest magnitude becomes -8 exactly, and 8 stands for zero (the op's default zero point):
    ONNX Runtime's own rounding (``MlasQuantizeBlockwise``), symmetric.
    """
    import numpy as np

    k, n = values.shape
    blocks = -(-k // BLOCK)
    rows = np.zeros((n, blocks * BLOCK), np.float32)
    rows[:, :k] = values.T
    rows = rows.reshape(n, blocks, BLOCK)
    most = np.take_along_axis(rows, np.abs(rows).argmax(-1, keepdims=True), -1)
    scale = (most / -8).astype(np.float32)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    steps = np.clip(np.rint(rows * inverse) + 8, 0, 15).astype(np.uint8)
    return steps[..., ::2] | (steps[..., 1::2] << 4), scale.reshape(-1)


def _possible(weight: Weight) -> bool:
    node = weight.node
    if weight.slot != 1 or len(weight.tensor.dims) != 2:
        return False
    if node.op_type == "Gemm":
        factors = [a.f for a in node.attribute if a.name in ("alpha", "beta")]
        return all(f == 1 for f in factors) and not attribute(node, "transA", 0)
    return node.op_type == "MatMul"


def four_bits(model: Any, region: Region) -> None:
    """Store the weights of matrix products in 4 bits, in place; other weights are left alone."""
    import onnx
    from onnx import numpy_helper

    by_node = {id(w.node): w for w in weights(model.graph) if _possible(w) and mark_of(w.node) not in region.ops}
    nodes: list[Any] = []
    for node in model.graph.node:
        weight = by_node.get(id(node))
        if weight is None:
            nodes.append(node)
            continue
        values = numpy_helper.to_array(weight.tensor)
        values = values.T if weight.axis == 0 else values
        packed, scale = pack(values)
        result = node.output[0]
        names = [f"{result}__w", f"{result}__w_scale"]
        model.graph.initializer.extend(
            numpy_helper.from_array(v, n) for n, v in zip(names, (packed, scale), strict=True)
        )
        bias = node.input[2] if len(node.input) > 2 else ""
        product = onnx.helper.make_node(
            "MatMulNBits",
            [node.input[0], *names],
            [f"{result}__product" if bias else result],
            domain="com.microsoft",
            K=values.shape[0],
            N=values.shape[1],
            bits=4,
            block_size=BLOCK,
            accuracy_level=1,
        )
        nodes.append(product)
        if bias:
            nodes.append(onnx.helper.make_node("Add", [f"{result}__product", bias], [result]))
        for made in nodes[-2 if bias else -1 :]:
            made.metadata_props.extend(node.metadata_props)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    if by_node:
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    drop_unused(model)
