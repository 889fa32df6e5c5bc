"""Half precision inside, the program's own dtypes outside.

Works as mixed precision does in training: products and cheap pointwise ops in float16, everything whose result needs
the range or the digits of float32 (sums, exponentials, normalisation, softmax, comparisons with large constants) in
float32, with casts where the two meet. An op that is not listed here stays in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.constants import add_constant, constant_value, drop_unused_constants
from build.legalize.core import graph_pass
from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: Largest finite float16 (IEEE 754 binary16).
HALF_MAX = 65504.0

#: Ops that are worth a cast of their inputs to float16: products with weights.
_HALF = frozenset(
    (
        *("conv1d.default", "conv1d.padding", "conv2d.default", "conv2d.padding", "convolution.default"),
        *("conv_transpose1d.default", "conv_transpose2d.input", "linear.default"),
        *("mm.default", "bmm.default", "addmm.default", "matmul.default", "embedding.default"),
    )
)

#: Ops computed in float16 when what they are given is already: their sources kept within its range.
_FOLLOW = frozenset(
    (
        *("relu.default", "relu_.default", "hardtanh.default", "relu6.default", "clamp.default", "hardswish.default"),
        *("sigmoid.default", "tanh.default", "silu.default", "leaky_relu.default", "hardsigmoid.default"),
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "neg.default", "abs.default"),
        *("max_pool1d.default", "max_pool2d.default"),
    )
)

#: Ops that move elements and compute nothing: they take the precision of what they are given.
_MOVES = frozenset(
    (
        *("view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints", "permute.default"),
        *("transpose.int", "t.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "unsqueeze.default"),
        *("slice.Tensor", "select.int", "expand.default", "cat.default", "stack.default", "clone.default"),
        *("contiguous.default", "alias.default", "detach.default", "pixel_shuffle.default", "repeat.default"),
        *("unbind.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "narrow.default"),
    )
)


def _short(node: Node) -> str:
    return op_name(node).removeprefix("aten.")


def _float32(value: Any) -> bool:
    return str(getattr(value, "dtype", "")) == "torch.float32"


def _fits(tensor: Any) -> bool:
    """Every value is finite in float16, or was not finite to begin with."""
    import torch

    values = tensor.detach()
    finite = values[torch.isfinite(values)]
    return finite.numel() == 0 or float(finite.abs().max()) <= HALF_MAX


def _scalars_fit(node: Node) -> bool:
    return all(abs(a) <= HALF_MAX for a in (*node.args, *node.kwargs.values()) if isinstance(a, float))


class _Caster:
    """Casts of one program, each made once."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.made: dict[tuple[Node, Any], Node] = {}
        self.constants: dict[Node, bool] = {}

    def is_constant(self, node: Node) -> bool:
        """A weight or other stored tensor that the program does not write to."""
        return node.op == "placeholder" and constant_value(self.program, node) is not None

    def fits(self, node: Node) -> bool:
        """False for a constant with values that float16 cannot hold."""
        if node not in self.constants:
            value = constant_value(self.program, node) if node.op == "placeholder" else None
            self.constants[node] = value is None or not _float32(value) or _fits(value)
        return self.constants[node]

    def cast(self, node: Node, dtype: Any, before: Node) -> Node:
        """``node`` in ``dtype``: a cast, or for a constant a converted copy."""
        import torch

        if (node, dtype) in self.made:
            return self.made[node, dtype]
        value = constant_value(self.program, node) if node.op == "placeholder" else None
        graph = self.program.graph
        if value is not None:
            new = add_constant(self.program, f"{node.name}_half", value.detach().to(dtype), node)
        else:
            # Right behind its source, so that every later user can share it.
            anchor = before if node.op == "placeholder" else node.next
            if node.op == "placeholder":
                anchor = next(n for n in graph.nodes if n.op != "placeholder")
            with graph.inserting_before(anchor):
                new = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
            with node.meta["val"].fake_mode:
                new.meta["val"] = node.meta["val"].to(dtype)
            if "stack_trace" in node.meta:
                new.meta["stack_trace"] = node.meta["stack_trace"]
        self.made[node, dtype] = new
        return new


def _all_narrow(floats: list[Node], now_half: set[Node], caster: _Caster) -> bool:
    return all(n in now_half or (caster.is_constant(n) and caster.fits(n)) for n in floats)


@graph_pass(fault="Converters' own half-precision modes change inputs and outputs too, and overflow on large constants")
def half_inside(program: ExportedProgram) -> ExportedProgram:
    """Compute products and pointwise ops in float16; inputs, outputs and state keep their dtypes."""
    import torch
    import torch.utils._pytree as pytree

    half, full = torch.float16, torch.float32
    caster = _Caster(program)
    now_half: set[Node] = set()

    def to_half(node: Any, user: Node) -> Any:
        if not hasattr(node, "meta") or node in now_half or not _float32(node.meta.get("val")):
            return node
        return caster.cast(node, half, user)

    def to_full(node: Any, user: Node) -> Any:
        return caster.cast(node, full, user) if hasattr(node, "meta") and node in now_half else node

    for node in list(program.graph.nodes):
        if node.op in ("placeholder", "get_attr"):
            continue
        values = pytree.tree_leaves(node.meta.get("val"))
        name = _short(node) if node.op == "call_function" else ""
        floats = [n for n in node.all_input_nodes if _float32(n.meta.get("val")) or n in now_half]
        listed = name in _HALF and all(_float32(v) for v in values) and all(caster.fits(n) for n in floats)
        moves = name in _MOVES and bool(floats) and all(n in now_half for n in floats)
        follows = name in _FOLLOW and any(n in now_half for n in floats) and _all_narrow(floats, now_half, caster)
        picks = name.startswith("getitem") and bool(node.args) and node.args[0] in now_half
        if picks:
            _set_half(node)
            now_half.add(node)
        elif ((listed or follows) and bool(floats) and _scalars_fit(node)) or moves:
            node.args = torch.fx.node.map_arg(node.args, lambda n, u=node: to_half(n, u))
            node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda n, u=node: to_half(n, u))
            _set_half(node)
            now_half.add(node)
        else:
            node.args = torch.fx.node.map_arg(node.args, lambda n, u=node: to_full(n, u))
            node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda n, u=node: to_full(n, u))
    _rename_outputs(program)
    program.graph.eliminate_dead_code()
    drop_unused_constants(program)
    return program


def _set_half(node: Node) -> None:
    import torch
    import torch.utils._pytree as pytree

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
            return value
        with value.fake_mode:
            return value.to(torch.float16)

    node.meta["val"] = pytree.tree_map(convert, node.meta.get("val"))


def _rename_outputs(program: ExportedProgram) -> None:
    """Casts stand in the output tuple now: say so in the signature."""
    out = program.graph.output_node()
    for value, spec in zip(out.args[0], program.graph_signature.output_specs, strict=True):
        if hasattr(value, "name") and hasattr(spec.arg, "name"):
            spec.arg.name = value.name
