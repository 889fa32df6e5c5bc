"""Cuts of a program: the same inputs, but the values of chosen nodes as outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from build.program import layer_of, op_name, signature_of, source_of
from build.quantize.pt2e import export_like
from build.quantize.regions import PASSING_ON, packet

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: Ops whose values say nothing that the value before them did not say.
_MOVES = frozenset(
    f"aten.{op}"
    for op in """
        view reshape _unsafe_view flatten squeeze unsqueeze permute transpose contiguous clone expand slice select alias
        detach detach_ dropout dropout_ t unflatten split chunk unbind split_with_sizes to _to_copy
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, kw_only=True)
class CutPoint:
    """A value of the program that a cut can show.

    Attributes:
        name: the node that computes it, as ``--keep-float`` takes it.
        shown: the node whose value is shown: the end of what a backend fuses with ``name`` (batch norm, activation).
        op: ``aten.conv2d.default``.
        source: the user's line.
        layer: path of its submodule, ``features.3``.
        inputs: names of the cut points that it reads, directly or through ops that only move elements.
    """

    name: str
    shown: str
    op: str
    source: str | None
    layer: str | None
    inputs: tuple[str, ...]


def cut_points(program: ExportedProgram) -> list[CutPoint]:
    """Every floating value worth looking at, in the order of the program."""
    found: dict[str, CutPoint] = {}  # by the node shown
    heads: dict[str, str] = {}  # node -> the node that computes its value
    for node in program.graph.nodes:
        if node.op != "call_function" or not _is_float_tensor(node):
            continue
        before = node.all_input_nodes[0].name if node.all_input_nodes else ""
        # An activation or a batch norm belongs to the op that it is fused with; pooling stands for itself.
        fused = packet(node) in PASSING_ON and "pool" not in packet(node) and before in heads
        heads[node.name] = heads[before] if fused else node.name
        if packet(node) in _MOVES or _is_fused_away(node):
            continue
        head = next(n for n in program.graph.nodes if n.name == heads[node.name])
        found[node.name] = CutPoint(
            name=head.name,
            shown=node.name,
            op=op_name(head),
            source=source_of(head),
            layer=layer_of(head),
            inputs=tuple(dict.fromkeys(_read_by(head, found))),
        )
    return list(found.values())


def _is_float_tensor(node: Node) -> bool:
    import torch

    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_fused_away(node: Node) -> bool:
    """Whether its value is only seen by the batch norm or activation that it is fused with."""
    users = list(node.users)
    return len(users) == 1 and packet(users[0]) in PASSING_ON - _MOVES and "pool" not in packet(users[0])


def _read_by(node: Node, shown: dict[str, CutPoint]) -> list[str]:
    """Names of the nearest cut points above a node."""
    names: list[str] = []
    waiting, seen = list(node.all_input_nodes), set()
    while waiting:
        above = waiting.pop(0)
        if above.name in seen:
            continue
        seen.add(above.name)
        if above.name in shown:
            names.append(shown[above.name].name)
        elif above.op == "call_function":
            waiting += above.all_input_nodes
    return names


def cut(program: ExportedProgram, shown: Sequence[str]) -> ExportedProgram:
    """The part of a program that computes some nodes' values, with those as outputs, named like the nodes.

    Args:
        program: not changed.
        shown: names of nodes with tensor values.
    """
    import torch.utils._pytree as pytree

    signature, spec = signature_of(program), program.call_spec.in_spec
    module = program.module(check_guards=False)
    nodes = {n.name: n for n in module.graph.nodes}
    values = {name: nodes[name] for name in shown}
    leaves, out_spec = pytree.tree_flatten(values)
    output = next(n for n in module.graph.nodes if n.op == "output")
    output.args = (tuple(leaves),)
    codegen = module.graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=out_spec)
    module.graph.eliminate_dead_code()
    module.recompile()
    return export_like(module, signature, spec)


def names_in_cut(made: ExportedProgram, names: Collection[str]) -> tuple[str, ...]:
    """What some of the program's nodes are called in a cut of it: fewer nodes are numbered in another way.

    Nodes that the cut does not hold are left out.
    """
    nodes = [n for n in made.graph.nodes if n.op == "call_function"]
    return tuple(n.name for n in nodes if any(source.name in names for source in n.meta.get("from_node", ())))
