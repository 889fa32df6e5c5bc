"""Programs that bring their own quantisation: their ops in a form that OpenVINO's frontend turns into the right thing.

Its own conversion skips dequantize ops, which is wrong for weights that are stored as integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.constants import add_constant, constant_value, drop_unused_constants
from build.legalize.quantized_graph import DEQUANTIZE, QUANTIZE, bounds, calls, require_static
from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: CPUs without VNNI add two products of an unsigned and a signed byte in 16 bits.
_PAIR_LIMIT = 2**15 - 1


def expand(program: ExportedProgram) -> tuple[ExportedProgram, str]:
    """Quantize and dequantize ops written out in place, and a warning (empty: none).

    Weights stay integers, scaled when the model is compiled. Values become FakeQuantize ops, which the CPU plugin
    computes with integer kernels, only where those cannot overflow on any CPU; else they are rounded in float
    arithmetic, as PyTorch itself computes the program.

    Raises:
        LoweringError: the quantisation is not 8-bit with fixed ranges.
    """
    require_static(program, "OpenVINO IR")
    exact = _overflows(program)
    for node in calls(program, *DEQUANTIZE):
        if constant_value(program, node.args[0]) is not None:
            _weight(program, node)
    for node in calls(program, *QUANTIZE):
        if exact and constant_value(program, node.args[0]) is None:
            _rounded(program, node)
    drop_unused_constants(program)
    program.graph.lint()
    program.graph_module.recompile()
    note = (
        "the program's 8-bit weights use their whole range, and products of such weights overflow on CPUs without "
        "VNNI: values are rounded to 8 bits in float arithmetic, without integer kernels"
    )
    return program, note if exact else ""


def _overflows(program: ExportedProgram) -> bool:
    """Whether two products of a value's and a weight's bytes may leave 16 bits."""
    steps = max((high - low for low, high in (bounds(n) for n in calls(program, *QUANTIZE))), default=0)
    largest = 0
    for node in calls(program, *DEQUANTIZE):
        weight = constant_value(program, node.args[0])
        if weight is not None and weight.numel():
            zero = _zero_point(program, node)
            largest = max(largest, int((weight.int() - zero).abs().max()))
    return 2 * steps * largest > _PAIR_LIMIT


def _zero_point(program: ExportedProgram, node: Node) -> Any:
    """An integer, or a tensor shaped to broadcast over the weight."""
    if op_name(node) == DEQUANTIZE[0]:
        return int(node.args[2])
    zero = constant_value(program, node.args[2])
    return 0 if zero is None else _spread(zero.int(), node)


def _spread(vector: Any, node: Node) -> Any:
    """A tensor with one entry per slice along the op's axis, shaped to broadcast over its operand."""
    rank = node.args[0].meta["val"].dim()
    return vector.reshape([-1 if i == node.args[3] % rank else 1 for i in range(rank)])


class _Writer:
    """New nodes in the place of one."""

    def __init__(self, program: ExportedProgram, node: Node) -> None:
        self._graph, self._node = program.graph, node

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        import torch

        with self._graph.inserting_before(self._node):
            new = self._graph.call_function(op, args, kwargs)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        with self._node.meta["val"].fake_mode:
            new.meta = {**self._node.meta, "val": op(*values, **kwargs)}
        return new


def _weight(program: ExportedProgram, node: Node) -> None:
    """Quantise a stored weight again from its float values: a pair of ops is what OpenVINO's frontend understands.

    It makes a FakeQuantize of it, and of that integers and scales. Integers that are merely converted and scaled would
    be folded into floats when the IR is made.
    """
    import torch

    steps = constant_value(program, node.args[0])
    with torch.no_grad():
        values = node.target(*torch.fx.node.map_arg(node.args, lambda n: constant_value(program, n)))
    weight = add_constant(program, f"{node.name}_weight", values, node)
    info = torch.iinfo(steps.dtype)
    per_channel = op_name(node) == DEQUANTIZE[1]
    ops = torch.ops.quantized_decomposed
    kind = ops.quantize_per_channel.default if per_channel else ops.quantize_per_tensor.default
    kept = node.args[1:4] if per_channel else node.args[1:3]
    pair = _Writer(program, node)(kind, weight, *kept, info.min, info.max, steps.dtype)
    node.args = (pair, *node.args[1:])


def _only_dequantized(node: Node) -> bool:
    return all(
        u.op == "call_function" and op_name(u) == DEQUANTIZE[0] and u.args[1:3] == node.args[1:3] for u in node.users
    )


def _rounded(program: ExportedProgram, node: Node) -> None:
    """``(clamp(round(x / scale) + zero) - zero) * scale`` in float32."""
    import torch

    aten = torch.ops.aten
    value, scale, zero, low, high, _ = node.args
    for user in list(node.users):
        write = _Writer(program, user)
        steps = write(aten.round.default, write(aten.mul.Tensor, value, 1.0 / scale))
        clamped = write(aten.clamp.default, steps, float(low - zero), float(high - zero))
        user.replace_all_uses_with(write(aten.mul.Tensor, clamped, scale))
        program.graph.erase_node(user)
    program.graph.erase_node(node)
