"""Writing new nodes into a program, for whole-graph rewrites that replace one call by several. Registers nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


class Emitter:
    """New nodes before one, with its source line; each is evaluated on the fake values of its arguments."""

    def __init__(self, program: ExportedProgram, node: Node, mode: Any = None) -> None:
        self._program, self._node = program, node
        self._mode = mode if mode is not None else fake_mode(program)

    def __call__(self, op: str, *args: Any, **kwargs: Any) -> Node:
        """``emit("aten.add.Tensor", node, 1)``."""
        import torch

        from build.legalize.core import resolve_op

        target = resolve_op(op)
        with self._program.graph.inserting_before(self._node):
            new = self._program.graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        kept = {k: v for k, v in self._node.meta.items() if k not in ("val", "tensor_meta", "unbacked_bindings")}
        with self._mode:
            new.meta = {**kept, "val": target(*values, **kwargs)}
        return new

    def number(self, value: int, dtype: Any) -> Node:
        """A whole number as a tensor without dimensions, for ops that take tensors only."""
        return self("aten.full.default", [], value, dtype=dtype)

    def replace(self, new: Node) -> None:
        """Put ``new`` in the node's place, among the program's outputs too, and delete the node."""
        old = self._node
        old.replace_all_uses_with(new)
        for spec in self._program.graph_signature.output_specs:
            if getattr(spec.arg, "name", None) == old.name:
                spec.arg.name = new.name
        self._program.graph.erase_node(old)


def fake_mode(program: ExportedProgram) -> Any:
    """The mode that the program's fake tensors live in."""
    import torch

    for node in program.graph.nodes:
        for leaf in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            mode = getattr(leaf, "fake_mode", None)
            if mode is not None:
                return mode
    return torch._subclasses.FakeTensorMode()
