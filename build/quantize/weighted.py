"""Which ops carry weights, where, and whether those weights are stored as small integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from build.quantize.regions import packet

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: Op -> (position of its weight, the weight's dimension of output channels). An embedding's rows are its channels.
WEIGHTED: dict[str, tuple[int, int]] = {
    "aten.conv1d": (1, 0),
    "aten.conv2d": (1, 0),
    "aten.conv3d": (1, 0),
    "aten.convolution": (1, 0),
    "aten.conv_transpose1d": (1, 1),
    "aten.conv_transpose2d": (1, 1),
    "aten.conv_transpose3d": (1, 1),
    "aten.linear": (1, 0),
    "aten.embedding": (0, 0),
    "aten.addmm": (2, 1),
    "aten.mm": (1, 1),
    "aten.matmul": (1, -1),
    "aten.bmm": (1, 2),
}
#: Position of ``groups`` in the arguments of transposed convolutions, and of ``transposed`` in ``convolution``'s.
_GROUPS, _TRANSPOSED = 6, 6
#: Ops that carry weights as lists of tensors; no recipe here quantises them.
_RECURRENT = frozenset(("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu"))


def channel_axis(node: Node) -> int:
    """The dimension of a weighted node's weight along which every slice gets a scale of its own.

    A grouped transposed convolution's output channels do not lie along one dimension: its input channels do.
    """
    name = packet(node)
    axis = WEIGHTED[name][1]
    if name.startswith("aten.conv_transpose") and len(node.args) > _GROUPS and node.args[_GROUPS] != 1:
        return 0
    if name == "aten.convolution" and node.args[_TRANSPOSED]:
        return 1 if node.args[8] == 1 else 0
    return axis if axis >= 0 else int(node.args[1].meta["val"].dim()) + axis


def weight_of(node: Any) -> Node | None:
    """The node that is a weighted op's weight operand, whatever computes it; None for other ops."""
    if node.op != "call_function" or packet(node) not in WEIGHTED:
        return None
    position = WEIGHTED[packet(node)][0]
    weight = node.args[position] if len(node.args) > position else None
    return weight if hasattr(weight, "all_input_nodes") else None


def constants(program: ExportedProgram) -> set[str]:
    """Names of the placeholders that stand for parameters, buffers and lifted constants."""
    return {s.arg.name for s in program.graph_signature.input_specs if s.kind.name != "USER_INPUT"}


def unquantized(program: ExportedProgram, keep: Sequence[str] = ()) -> dict[str, int]:
    """Op name -> count of the ops whose weights are stored in floating point, those named in ``keep`` left out."""
    known = constants(program)
    found: Counter[str] = Counter()
    for node in program.graph.nodes:
        if node.op != "call_function" or node.name in keep:
            continue
        if packet(node) in _RECURRENT or _float_weight(node, known):
            found[packet(node)] += 1
    return dict(sorted(found.items()))


def _float_weight(node: Node, known: set[str]) -> bool:
    """Whether the weight comes from stored floats alone: from no input of the program, and from no integers."""
    weight = weight_of(node)
    if weight is None:
        return False
    leaves = list(_leaves(weight))
    return bool(leaves) and all(n.name in known and n.meta["val"].is_floating_point() for n in leaves)


def _leaves(node: Node) -> Iterator[Node]:
    queue, seen = [node], {node}
    while queue:
        current = queue.pop()
        if current.op == "placeholder":
            yield current
        new = [n for n in current.all_input_nodes if n not in seen]
        seen.update(new)
        queue += new
