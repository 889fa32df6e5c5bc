"""Which ops carry weights, and where."""

from __future__ import annotations

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
