"""Which operations of an ML Program read weights that are stored as floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from .graph import Block, Node, Ref

#: operation -> the arguments that may be weights.
_CARRIERS: dict[str, tuple[str, ...]] = {
    "conv": ("weight",),
    "conv_transpose": ("weight",),
    "linear": ("weight",),
    "matmul": ("x", "y"),
    "gather": ("x",),
    **dict.fromkeys(("lstm", "gru", "rnn"), ("weight_ih", "weight_hh")),
}
#: operations that only bring a weight into the form in which it is read.
_UNPACKING = frozenset(("cast", "reshape", "transpose", "expand_dims", "squeeze"))


def _nodes(block: Block) -> Iterator[Node]:
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from _nodes(inner)


def _is_float(name: str, made: Mapping[str, Node]) -> bool:
    node = made.get(name)
    if node is not None and node.op in _UNPACKING:
        return any(isinstance(a, Ref) and _is_float(a.name, made) for a in (*node.args.get("x", ()),))
    if node is None or node.op != "const":
        return False
    kind = node.outputs[0].type
    return kind.dtype in ("fp16", "fp32") and kind.shape is not None and len(kind.shape) > 1


def float_ops(block: Block) -> dict[str, int]:
    """Operation -> count of those with a float weight, in a block whose constants are not decoded yet."""
    nodes = list(_nodes(block))
    made = {slot.name: node for node in nodes for slot in node.outputs}
    found: Counter[str] = Counter()
    for node in nodes:
        operands = [a for key in _CARRIERS.get(node.op, ()) for a in node.args.get(key, ())]
        if any(isinstance(a, Ref) and _is_float(a.name, made) for a in operands):
            found[node.op] += 1
    return dict(sorted(found.items()))
