"""Which ops of an ``ov.Model`` carry weights, and which of those weights are floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

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


def float_ops(model: Any, leave_out: Collection[str] = ()) -> dict[str, int]:
    """Op -> count of those with a float weight, ops that come from a node in ``leave_out`` not counted."""
    found: Counter[str] = Counter()
    for node in model.get_ops():
        slots = _CARRIERS.get(node.get_type_name(), ())
        if mark_of(node) in leave_out or not any(_float_weight(node.input_value(i)) for i in slots):
            continue
        found[node.get_type_name()] += 1
    return dict(sorted(found.items()))
