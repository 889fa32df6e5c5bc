"""8-bit weights under float arithmetic, in the forms that ExecuTorch computes rightly.

- A linear layer goes to XNNPACK, which multiplies floats by 8-bit weights with a scale per row. Its bias must be an
  addition of its own: XNNPACK's kernel (executorch 1.5.1) adds a wrong one.
- A 1x1 convolution is such a linear layer over the channels: XNNPACK has no convolution of floats by integers.
- An embedding gathers integers and scales what it gathered; the table is never widened.
- Anything else reads ``integers * scale``, widened at every call: other convolutions run on the portable kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.constants import add_constant, constant_value, drop_unused_constants
from build.program import op_name
from build.quantize.regions import packet
from build.quantize.weighted import constants

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_DEQUANTIZE = "quantized_decomposed.dequantize_per_channel.default"


def weights_alone(program: ExportedProgram) -> ExportedProgram:
    """Rewrite the readers of stored integers whose other operand is a float, as told above."""
    known = constants(program)
    stored = [
        n
        for n in program.graph.nodes
        if n.op == "call_function" and op_name(n) == _DEQUANTIZE and n.args[0].name in known
    ]
    if not stored:
        return program
    for node in stored:
        widened: Node | None = None
        for user in list(node.users):
            if _reads_integers(user):
                continue
            if packet(user) == "aten.linear" and user.args[1] is node and _all_zero(program, node.args[2]):
                _split_bias(program, user)
            elif _is_pointwise(user, node) and _all_zero(program, node.args[2]):
                _as_linear(program, user, node)
            elif packet(user) == "aten.embedding" and user.args[0] is node:
                _gather_integers(program, user, node)
            else:
                widened = widened or _widen(program, node)
                user.replace_input_with(node, widened)
    program.graph.eliminate_dead_code()
    drop_unused_constants(program)
    program.graph_module.recompile()
    return program


def _reads_integers(user: Node) -> bool:
    """Whether the op's other operands are dequantised values: a pattern that XNNPACK takes whole."""
    others = [n for n in user.all_input_nodes if n.op == "call_function" and op_name(n) != _DEQUANTIZE]
    return any("dequantize" in op_name(n) for n in others)


def _emit(program: ExportedProgram, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node at the graph's insertion point, with its fake value and the source line of ``like``."""
    import torch

    new = program.graph.call_function(target, args, kwargs)
    values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    with like.meta["val"].fake_mode:
        new.meta = {**like.meta, "val": target(*values, **kwargs)}
    return new


def _split_bias(program: ExportedProgram, linear: Node) -> None:
    import torch

    if len(linear.args) < 3 or linear.args[2] is None:
        return
    bias = linear.args[2]
    linear.args = linear.args[:2]
    users = list(linear.users)
    with program.graph.inserting_after(linear):
        total = _emit(program, linear, torch.ops.aten.add.Tensor, linear, bias)
    for user in users:
        user.replace_input_with(linear, total)
    _rename_output(program, linear, total)


def _is_pointwise(node: Node, weight: Node) -> bool:
    """A 2D convolution over a batch that multiplies each pixel's channels by a matrix, and does nothing else."""
    if packet(node) != "aten.conv2d" or node.args[1] is not weight or node.meta["val"].dim() != 4:
        return False
    given = dict(zip(("stride", "padding", "dilation", "groups"), node.args[3:], strict=False))
    plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    same = all(value in (plain[name], [plain[name]], [plain[name]] * 2) for name, value in given.items())
    return same and tuple(weight.meta["val"].shape[2:]) == (1, 1)


def _as_linear(program: ExportedProgram, conv: Node, dequantize: Node) -> None:
    import torch

    aten = torch.ops.aten
    stored, scale, zero, axis, *rest = dequantize.args
    value = constant_value(program, stored)
    assert value is not None
    assert axis == 0
    matrix = add_constant(program, f"{stored.name}_matrix", value.flatten(1).clone(), stored)
    bias = conv.args[2] if len(conv.args) > 2 else None
    with program.graph.inserting_before(conv):
        weight = _emit(program, conv, dequantize.target, matrix, scale, zero, axis, *rest, **dequantize.kwargs)
        last = _emit(program, conv, aten.permute.default, conv.args[0], [0, 2, 3, 1])
        result = _emit(program, conv, aten.linear.default, last, weight)
        if bias is not None:
            result = _emit(program, conv, aten.add.Tensor, result, bias)
        result = _emit(program, conv, aten.permute.default, result, [0, 3, 1, 2])
    conv.replace_all_uses_with(result)
    _rename_output(program, conv, result)
    program.graph.erase_node(conv)


def _gather_integers(program: ExportedProgram, embedding: Node, dequantize: Node) -> None:
    import torch

    aten = torch.ops.aten
    table, scale, zero, axis = dequantize.args[:4]
    if axis != 0 or not _all_zero(program, zero):
        embedding.replace_input_with(dequantize, _widen(program, dequantize))
        return
    dtype = embedding.meta["val"].dtype
    with program.graph.inserting_before(embedding):
        rows = _emit(program, embedding, aten.embedding.default, table, *embedding.args[1:])
        rows = _emit(program, embedding, aten._to_copy.default, rows, dtype=dtype)
        column = _emit(program, embedding, aten.reshape.default, scale, [-1, 1])
        factors = _emit(program, embedding, aten.embedding.default, column, *embedding.args[1:])
        if factors.meta["val"].dtype != dtype:
            factors = _emit(program, embedding, aten._to_copy.default, factors, dtype=dtype)
        result = _emit(program, embedding, aten.mul.Tensor, rows, factors)
    embedding.replace_all_uses_with(result)
    _rename_output(program, embedding, result)
    program.graph.erase_node(embedding)


def _widen(program: ExportedProgram, dequantize: Node) -> Node:
    """``(integers - zero_point) * scale``, right behind the dequantisation."""
    import torch

    aten = torch.ops.aten
    stored, scale, zero, axis = dequantize.args[:4]
    value = dequantize.meta["val"]
    shape = [1] * value.dim()
    shape[axis] = value.shape[axis]
    with program.graph.inserting_before(dequantize):
        wide = _emit(program, dequantize, aten._to_copy.default, stored, dtype=value.dtype)
        if not _all_zero(program, zero):
            offset = _emit(program, dequantize, aten._to_copy.default, zero, dtype=value.dtype)
            offset = _emit(program, dequantize, aten.reshape.default, offset, shape)
            wide = _emit(program, dequantize, aten.sub.Tensor, wide, offset)
        factor = _emit(program, dequantize, aten._to_copy.default, scale, dtype=value.dtype)
        factor = _emit(program, dequantize, aten.reshape.default, factor, shape)
        return _emit(program, dequantize, aten.mul.Tensor, wide, factor)


def _all_zero(program: ExportedProgram, node: Node | None) -> bool:
    """Whether zero points are zero, or left out."""
    value = None if node is None else constant_value(program, node)
    return node is None or (value is not None and not bool(value.any()))


def _rename_output(program: ExportedProgram, old: Node, new: Node) -> None:
    """The program's outputs are listed by the names of their nodes."""
    for spec in program.graph_signature.output_specs:
        if getattr(spec.arg, "name", None) == old.name:
            spec.arg.name = new.name
