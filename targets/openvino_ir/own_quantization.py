"""Programs that bring their own quantisation: their ops in a form that OpenVINO's frontend turns into the right thing.

Its own conversion skips dequantize ops, which is wrong for weights that are stored as integers; and what it makes of
other ops that scale integers, it folds into floats. So weights go through the conversion as floats, and are found in
its result by their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build.legalize.constants import add_constant, constant_value, drop_unused_constants
from build.legalize.quantized_graph import DEQUANTIZE, QUANTIZE, bounds, calls, require_static
from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from targets.contract import Array

#: CPUs without VNNI add two products of an unsigned and a signed byte in 16 bits.
_PAIR_LIMIT = 2**15 - 1


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A weight of the program: ``(integers - zero) * scale``, one scale and zero point per slice along ``axis``."""

    integers: Array
    scale: Array
    zero: Array
    axis: int

    def turned(self) -> Stored:
        """The transpose of a matrix."""
        return Stored(integers=self.integers.T, scale=self.scale, zero=self.zero, axis=1 - self.axis)


def expand(program: ExportedProgram) -> tuple[Mapping[bytes, Stored], str]:
    """Quantize and dequantize ops written out in place; the weights by their float bytes, and a warning (empty: none).

    Values become FakeQuantize ops, which the CPU plugin
    computes with integer kernels, only where those cannot overflow on any CPU; else they are rounded in float
    arithmetic, as PyTorch itself computes the program.

    Raises:
        LoweringError: the quantisation is not 8-bit with fixed ranges.
    """
    require_static(program, "OpenVINO IR")
    exact = _overflows(program)
    stored: dict[bytes, Stored] = {}
    for node in calls(program, *DEQUANTIZE):
        if constant_value(program, node.args[0]) is not None:
            stored |= _weight(program, node)
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
    return stored, note if exact else ""


def _overflows(program: ExportedProgram) -> bool:
    """Whether two products of a value's and a weight's bytes may leave 16 bits."""
    steps = max((high - low for low, high in (bounds(n) for n in calls(program, *QUANTIZE))), default=0)
    largest = 0
    for node in calls(program, *DEQUANTIZE):
        weight = constant_value(program, node.args[0])
        if weight is not None and weight.numel():
            largest = max(largest, int(weight.int().abs().max()))
    return 2 * steps * largest > _PAIR_LIMIT


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


def _weight(program: ExportedProgram, node: Node) -> dict[bytes, Stored]:
    """Replace one stored weight by its float values."""
    import torch

    integers: Any = constant_value(program, node.args[0])
    with torch.no_grad():
        values = node.target(*torch.fx.node.map_arg(node.args, lambda n: constant_value(program, n)), **node.kwargs)
    if op_name(node) == DEQUANTIZE[0]:
        scale, zero, axis = torch.tensor([float(node.args[1])]), torch.tensor([int(node.args[2])]), 0
    else:
        scale, zero = (constant_value(program, n) for n in node.args[1:3])
        zero = torch.zeros_like(scale) if zero is None else zero
        axis = node.args[3] % values.dim()
    weight = add_constant(program, f"{node.name}_weight", values, node)
    node.replace_all_uses_with(weight)
    program.graph.erase_node(node)
    found = Stored(integers=integers.numpy(), scale=scale.float().numpy(), zero=zero.float().numpy(), axis=axis)
    made = {_key(values.numpy()): found}
    if values.dim() == 2:
        made[_key(values.numpy().T)] = found.turned()
    return made


def _key(values: Array) -> bytes:
    import hashlib

    return hashlib.sha256(values.tobytes()).digest()


def store(model: Any, weights: Mapping[bytes, Stored]) -> None:
    """Store the weights of a converted model as the integers that they are, each behind its scale."""
    import numpy as np
    from openvino import opset15 as ov

    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "f32":
            continue
        found = weights.get(_key(node.get_data()))
        shape = list(node.get_output_shape(0))
        spread = None if found is None else _broadcast(found, shape)
        if found is None or spread is None:
            continue
        value = ov.convert(ov.constant(np.ascontiguousarray(found.integers).reshape(shape)), "f32")
        if found.zero.any():
            value = ov.subtract(value, ov.constant(found.zero.reshape(spread)))
        value = ov.multiply(value, ov.constant(found.scale.reshape(spread)))
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(value.output(0))


def _broadcast(weight: Stored, shape: list[int]) -> list[int] | None:
    """The shape of the scales beside integers of ``shape``, which may be split or merged; None where it cannot be."""
    import math

    if weight.scale.size == 1:
        return [1] * len(shape)
    if shape == list(weight.integers.shape):
        return [n if i == weight.axis else 1 for i, n in enumerate(shape)]
    lead = next((i for i in range(len(shape) + 1) if math.prod(shape[:i]) == weight.scale.size), None)
    if weight.axis != 0 or lead is None:
        return None
    return [n if i < lead else 1 for i, n in enumerate(shape)]


def _only_dequantized(node: Node) -> bool:
    return all(
        u.op == "call_function" and op_name(u) == DEQUANTIZE[0] and u.args[1:3] == node.args[1:3] for u in node.users
    )


def _rounded(program: ExportedProgram, node: Node) -> None:
    """``(clamp(round(x / scale) + zero) - zero) * scale`` in float32.

    Both factors are written as divisions: OpenVINO moves a product into the weights of the layer before or after it,
    whose integers would be lost.
    """
    import torch

    aten = torch.ops.aten
    value, scale, zero, low, high, _ = node.args
    for user in list(node.users):
        write = _Writer(program, user)
        steps = write(aten.round.default, write(aten.div.Tensor, value, scale))
        clamped = write(aten.clamp.default, steps, float(low - zero), float(high - zero))
        user.replace_all_uses_with(write(aten.div.Tensor, clamped, 1.0 / scale))
        program.graph.erase_node(user)
    program.graph.erase_node(node)
