"""Which ops of an ``ov.Model`` carry weights, and which of those weights are floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from targets.contract import Arithmetic
from targets.openvino_ir.marks import mark_of

#: op -> the inputs that may be weights.
_CARRIERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Convolution", "GroupConvolution"), (1,)),
    **dict.fromkeys(("ConvolutionBackpropData", "GroupConvolutionBackpropData"), (1,)),
    "MatMul": (0, 1),
    "Gather": (0,),
    "LSTMSequence": (4, 5),
    "GRUSequence": (3, 4),
    "RNNSequence": (3, 4),
}
#: ops that only bring a stored weight into the form in which it is read.
_UNPACKING = frozenset(("Convert", "Multiply", "Subtract", "Reshape", "Transpose", "Unsqueeze", "Squeeze"))


def _leaves(port: Any) -> Iterator[Any]:
    """The nodes behind an op's input; a FakeQuantize is one: its operand is an integer when it is stored."""
    node = port.get_node()
    if node.get_type_name() in _UNPACKING:
        for inner in node.input_values():
            yield from _leaves(inner)
    else:
        yield node


def _float_weight(port: Any) -> bool:
    if len(port.get_partial_shape()) < 2:
        return False
    leaves = list(_leaves(port))
    return all(n.get_type_name() == "Constant" for n in leaves) and all(n.get_element_type().is_real() for n in leaves)


def _small_weight(port: Any) -> bool:
    """Whether an op's input is a stored weight of integers."""
    leaves = list(_leaves(port))
    stored = [n.input_value(0).get_node() if n.get_type_name() == "FakeQuantize" else n for n in leaves]
    constant = all(n.get_type_name() == "Constant" for n in stored)
    return len(port.get_partial_shape()) > 1 and constant and not _float_weight(port)


def whole_rows(model: Any, group: int) -> bool:
    """Whether every stored matrix's rows, along which its products are summed, are whole groups of weights."""
    for node in model.get_ops():
        if node.get_type_name() != "MatMul":
            continue
        turned = node.get_attributes()
        for port, across in ((0, turned["transpose_a"]), (1, not turned["transpose_b"])):
            value = node.input_value(port)
            if _float_weight(value) and value.get_shape()[-2 if across else -1] % group:
                return False
    return True


def weight_bits(model: Any) -> dict[int, dict[str, int]]:
    """Bits -> op -> count of the ops whose stored weights have so many."""
    found: dict[int, Counter[str]] = {4: Counter(), 8: Counter()}
    for node in model.get_ops():
        ports = [node.input_value(i) for i in _CARRIERS.get(node.get_type_name(), ())]
        kinds = {n.get_element_type().bitwidth for p in ports if _small_weight(p) for n in _leaves(p)} & set(found)
        if kinds:
            found[min(kinds)][node.get_type_name()] += 1
    return {bits: dict(sorted(ops.items())) for bits, ops in found.items()}


#: ops that hand integers on as they are.
_PASSING = _UNPACKING | frozenset(
    """
    MaxPool Concat Split VariadicSplit StridedSlice Slice Pad Gather Tile Broadcast Relu Clamp DepthToSpace SpaceToDepth
    ShuffleChannels Interpolate ReduceMax AvgPool
    """.split()  # noqa: SIM905
) - frozenset(("Multiply", "Subtract"))


def _is_integer(port: Any) -> bool:
    """Whether a value was rounded to 8 bits, and nothing but moved since."""
    node = port.get_node()
    while node.get_type_name() in _PASSING:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "FakeQuantize")


def arithmetic(model: Any, leave_out: Collection[str] = ()) -> Arithmetic:
    """What computes in integers, told by what its values are; a table is only looked up, and computes nothing."""
    integers = 0
    floats: Counter[str] = Counter()
    for node in model.get_ops():
        kind = node.get_type_name()
        slots = [i for i in _CARRIERS.get(kind, ()) if _small_weight(node.input_value(i))]
        if kind == "Gather" or not slots:
            continue
        if _is_integer(node.input_value(0 if slots != [0] else 1)):
            integers += 1
        elif mark_of(node) not in leave_out:
            floats[kind] += 1
    return Arithmetic(integers=integers, floats=dict(sorted(floats.items())))


def float_ops(model: Any, leave_out: Collection[str] = ()) -> dict[str, int]:
    """Op -> count of those with a float weight, ops that come from a node in ``leave_out`` not counted."""
    found: Counter[str] = Counter()
    for node in model.get_ops():
        slots = _CARRIERS.get(node.get_type_name(), ())
        if mark_of(node) in leave_out or not any(_float_weight(node.input_value(i)) for i in slots):
            continue
        found[node.get_type_name()] += 1
    return dict(sorted(found.items()))
