"""Max pooling over windows that hold nothing but -inf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import graph_pass
from build.legalize.emit import Emitter
from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_POOLS = ("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default")
_LOW = float("-inf")

#: what these return is no -inf, or is not expected to be: they end an ancestry.
_ENDS = frozenset(
    f"aten.{op}"
    for op in """
        softmax _softmax sigmoid tanh relu relu_ relu6 hardtanh hardsigmoid exp scaled_dot_product_attention nan_to_num
        conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm bmm addmm
        baddbmm batch_norm layer_norm group_norm instance_norm _native_batch_norm_legit_no_training native_layer_norm
    """.split()  # noqa: SIM905
)


def _makes_infinity(node: Node, constants: dict[str, Any]) -> bool:
    """Whether an op is given -inf to put somewhere, as a number or in a constant; an input may hold it."""
    import torch

    if node.op == "placeholder":
        if node.name not in constants:
            return True
        tensor = constants[node.name]
        return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and bool(torch.isneginf(tensor).any())
    return any(isinstance(a, float) and a == _LOW for a in (*node.args, *node.kwargs.values()))


@graph_pass(
    fault="OpenVINO and ONNX Runtime pool from -3.4e38 up: what it gives for a window of nothing but -inf", ops=_POOLS
)
def pooled_infinities(program: ExportedProgram) -> ExportedProgram:
    """Pool the marks of what is larger than -inf too, and put -inf where none is.

    Only where -inf can be in a pool's ancestry: a mask, or an input that no layer is between.
    """
    constants = {
        s.arg.name: program.state_dict.get(s.target, program.constants.get(s.target))
        for s in program.graph_signature.input_specs
        if s.target is not None and hasattr(s.arg, "name")
    }
    tainted: set[Node] = set()
    for node in list(program.graph.nodes):
        ends = node.op == "call_function" and op_name(node).rpartition(".")[0] in _ENDS
        if _makes_infinity(node, constants) or (not ends and any(n in tainted for n in node.all_input_nodes)):
            tainted.add(node)
        if node.op != "call_function" or op_name(node) not in _POOLS or node not in tainted:
            continue
        emit = Emitter(program, node)
        x, rest = node.args[0], node.args[1:]
        if not x.meta["val"].is_floating_point():
            continue
        low = emit("aten.eq.Scalar", x, _LOW)
        larger = emit("aten.where.self", low, emit("aten.zeros_like.default", x), emit("aten.ones_like.default", x))
        plain, marks = emit(op_name(node), x, *rest), emit(op_name(node), larger, *rest)
        none = emit("aten.eq.Scalar", marks, 0.0)
        new = emit("aten.where.self", none, emit("aten.full_like.default", plain, _LOW), plain)
        tainted.add(new)
        emit.replace(new)
    program.graph_module.recompile()
    return program
