"""Outputs that are one tensor under several names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import graph_pass

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: ops whose result is their first argument, whatever their other arguments.
_HAND_ON = ("aten.alias.default", "aten.detach.default", "aten.clone.default", "aten.contiguous.default")
_COPIES = ("aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.alias_copy.default")
_DROPOUTS = ("aten.dropout.default", "aten.feature_dropout.default")
_SQUEEZES = ("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")


def _hands_on(node: Node) -> bool:
    """Whether the result is the first argument itself."""
    if node.op != "call_function" or not node.args:
        return False
    name = str(node.target)
    if name in _DROPOUTS:
        return not node.args[2]
    if name in _SQUEEZES:
        before: Any = node.args[0]
        return len(before.meta["val"].shape) == len(node.meta["val"].shape)
    return name in _HAND_ON or name in _COPIES


def _root(node: Node) -> Node:
    """The value that a chain of such ops hands on."""
    while _hands_on(node):
        before: Any = node.args[0]
        node = before
    return node


@graph_pass(fault="coremltools has no alias, which x[:] is")
def aliases_dropped(program: ExportedProgram) -> ExportedProgram:
    """Read what an alias stands for, wherever the alias was read. Outputs are left to ``outputs_at_their_roots``."""
    for node in list(program.graph.nodes):
        if node.op == "call_function" and str(node.target) == "aten.alias.default":
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
            if not node.users:
                program.graph.erase_node(node)
    return program


@graph_pass(fault="coremltools gives y.detach(), y.clone() and a dropout y's own name, which it then has twice")
def outputs_at_their_roots(program: ExportedProgram) -> ExportedProgram:
    """Return the value itself where ops that change nothing hand on an input, or what another output is too.

    ``own_output_nodes``, which comes after it, then tells the outputs apart.
    """
    graph, specs = program.graph, program.graph_signature.output_specs
    out = graph.output_node()
    values: list[Any] = list(out.args[0])
    roots = [_root(v) if hasattr(v, "meta") else v for v in values]
    users = {s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"}
    for i, (value, root) in enumerate(zip(values, roots, strict=True)):
        if value is root:
            continue
        if root.name in users or roots.count(root) > 1 or str(value.target) == "aten.alias.default":
            values[i] = root
            specs[i].arg.name = root.name
    out.args = (tuple(values),)
    graph.eliminate_dead_code()
    return program
