"""Weights stored as small integers, turned back into floats inside the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import graph_pass
from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_DEQUANTIZE = "torchao.dequantize_affine.default"


def _argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _quantized_activation(node: Node) -> bool:
    """Whether a product with this weight also quantises its activation: the pair is a pattern backends recognise."""
    for user in node.users:
        others = [n for n in user.all_input_nodes if n is not node and n.op == "call_function"]
        if any(op_name(n) == _DEQUANTIZE for n in others):
            return True
    return op_name(node.args[0]) == "torchao.quantize_affine.default" if node.args[0].op == "call_function" else False


def _grid(node: Node) -> list[int] | None:
    """The shape of the scales, size 1 in dimensions that one scale spans; None for blocks inside a dimension."""
    shape = list(node.args[0].meta["val"].shape)
    if not all(isinstance(n, int) for n in shape):
        return None
    grid = [n // b for n, b in zip(shape, node.args[1], strict=True)]
    return grid if all(g in (1, n) for g, n in zip(grid, shape, strict=True)) else None


@graph_pass(
    fault="ExecuTorch's XNNPACK loses the scale of torchao's weight-only quantisation",
    ops=(_DEQUANTIZE,),
)
def dequantize_by_product(program: ExportedProgram) -> ExportedProgram:
    """``(q - zero_point) * scale`` for weights with a scale per tensor or per row and activations that stay floats."""
    import torch

    aten, graph = torch.ops.aten, program.graph

    def emit(target: Any, args: tuple[Any, ...], like: Node, **kwargs: Any) -> Node:
        new = graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        with like.meta["val"].fake_mode:
            new.meta = {**like.meta, "val": target(*values, **kwargs)}
        return new

    for node in list(graph.nodes):
        if node.op != "call_function" or op_name(node) != _DEQUANTIZE or _quantized_activation(node):
            continue
        grid = _grid(node)
        if grid is None:
            continue
        dtype = node.meta["val"].dtype
        scale, zero_point = _argument(node, 2, "scale"), _argument(node, 3, "zero_point")
        with graph.inserting_before(node):
            value = emit(aten._to_copy.default, (node.args[0],), node, dtype=dtype)
            if zero_point is not None:
                zero = emit(aten._to_copy.default, (zero_point,), node, dtype=dtype)
                value = emit(aten.sub.Tensor, (value, emit(aten.reshape.default, (zero, grid), node)), node)
            factor = emit(aten.reshape.default, (scale, grid), node)
            if scale.meta["val"].dtype is not dtype:
                factor = emit(aten._to_copy.default, (factor,), node, dtype=dtype)
            result = emit(aten.mul.Tensor, (value, factor), node)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    return program
