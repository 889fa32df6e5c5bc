"""Weights and other constant tensors of a program: read, add, fold, make contiguous."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from build.legalize.core import graph_pass

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Node

_CONSTANT_KINDS = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")

#: Ops that only rearrange or select: their result is never larger than the weight it comes from.
_VIEWS = ("view", "reshape", "permute", "transpose.int", "t", "unsqueeze", "squeeze.dim", "squeeze", "slice.Tensor")
_MORE_VIEWS = ("select.int", "detach", "alias", "_unsafe_view", "contiguous", "flatten.using_ints", "numpy_T", "mT")


def constant_value(program: ExportedProgram, node: Any) -> Tensor | None:
    """The tensor behind a weight's placeholder; None for anything else and for a buffer that the program writes to."""
    signature = program.graph_signature
    for spec in signature.input_specs:
        if getattr(spec.arg, "name", None) == getattr(node, "name", "") and spec.kind.name in _CONSTANT_KINDS:
            if spec.target in signature.buffers_to_mutate.values():
                return None
            found: Any = program.state_dict.get(spec.target)
            return program.constants.get(spec.target) if found is None else found
    return None


def add_constant(program: ExportedProgram, name: str, tensor: Tensor, like: Node) -> Node:
    """A new constant of the program, as a placeholder before all user inputs.

    ``name``: a wish; a number is added until it is free. ``like``: a node whose fake tensors' mode is used.
    """
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    taken = {n.name for n in program.graph.nodes} | set(program.state_dict) | set(program.constants)
    base = re.sub(r"\W", "_", name)
    free, n = base, 1
    while free in taken:
        free, n = f"{base}_{n}", n + 1
    specs = program.graph_signature.input_specs
    places = [n for n in program.graph.nodes if n.op == "placeholder"]
    first = next((i for i, s in enumerate(specs) if s.kind.name not in _CONSTANT_KINDS), len(specs))
    anchor = places[first] if first < len(places) else next(iter(program.graph.nodes))
    with program.graph.inserting_before(anchor):
        node = program.graph.placeholder(free)
    data = tensor.detach().contiguous()
    mode = like.meta["val"].fake_mode
    node.meta["val"] = mode.from_tensor(data, static_shapes=True)
    program.state_dict[free] = data
    specs.insert(first, InputSpec(InputKind.BUFFER, TensorArgument(node.name), free, persistent=True))
    return node


def drop_unused_constants(program: ExportedProgram) -> None:
    """Remove the placeholders and tensors of constants that nothing uses any more."""
    signature = program.graph_signature
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    kept = []
    for spec in signature.input_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if spec.kind.name not in _CONSTANT_KINDS or node is None or node.users:
            kept.append(spec)
            continue
        program.graph.erase_node(node)
    signature.input_specs[:] = kept
    targets = {s.target for s in kept}
    for store in (program.state_dict, program.constants):
        for key in [k for k in store if k not in targets and hasattr(store[k], "dtype")]:
            del store[key]


@graph_pass(fault="XNNPACK takes only weights that are constants themselves, not a slice or view of one")
def fold_weight_views(program: ExportedProgram) -> ExportedProgram:
    """Compute slices, views and permutations of weights now, and store the results as weights."""
    import torch

    names = {f"aten::{n}" for n in (*_VIEWS, *_MORE_VIEWS)}
    changed = False
    for node in list(program.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not node.args:
            continue
        if node.target._name.removesuffix(".default") not in names or node.target.namespace != "aten":
            continue
        if len(node.all_input_nodes) != 1 or node.all_input_nodes[0] is not node.args[0]:
            continue
        value = constant_value(program, node.args[0])
        if value is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
            continue
        with torch.no_grad():
            result = node.target(value, *node.args[1:], **node.kwargs)
        folded = add_constant(program, f"{node.args[0].name}_{node.name}", result, node)
        node.replace_all_uses_with(folded, delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            program.graph.erase_node(node)
        changed = True
    if changed:
        drop_unused_constants(program)
    return program


@graph_pass(fault="ExecuTorch keeps the strides of the example inputs: captured channels-last, it is wrong for others")
def contiguous_tensors(program: ExportedProgram) -> ExportedProgram:
    """Take inputs and weights in the default memory order, whatever order they were captured in."""
    import torch

    inputs = {
        s.arg.name
        for s in program.graph_signature.input_specs
        if s.kind.name == "USER_INPUT" and hasattr(s.arg, "name")
    }
    changed = False
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        with value.fake_mode:
            plain = torch.empty(value.shape, dtype=value.dtype)
        # Strides, not is_contiguous(): a single channel is contiguous in both orders, yet captured as one of them.
        if [str(s) for s in plain.stride()] == [str(s) for s in value.stride()]:
            continue
        if node.name in inputs:
            node.meta["val"] = plain
            changed = True
            continue
        for spec in program.graph_signature.input_specs:
            if getattr(spec.arg, "name", None) == node.name:
                changed = _make_contiguous(program, node, spec.target) or changed
    return program.run_decompositions({}) if changed else program


def _make_contiguous(program: ExportedProgram, node: Node, target: str) -> bool:
    import torch

    for store in (program.state_dict, program.constants):
        tensor = store.get(target)
        if isinstance(tensor, torch.Tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            data = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
            as_parameter = isinstance(tensor, torch.nn.Parameter)
            store[target] = torch.nn.Parameter(data, requires_grad=False) if as_parameter else data
            node.meta["val"] = node.meta["val"].fake_mode.from_tensor(data, static_shapes=True)
            return True
    return False
