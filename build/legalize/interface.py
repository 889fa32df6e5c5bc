"""A program's outer shape: what goes in and comes out, in the plainest form that a converter can be given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import graph_pass
from build.program import drop_unreadable_guards

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


@graph_pass(
    fault="OpenVINO stops at dict, nested and None outputs ('Tensor name is not a number'); ONNX gives constants a name"
)
def flat_interface(program: ExportedProgram) -> ExportedProgram:
    """Tensors in, a tuple of tensors out: drops None and constant outputs, containers, and changes of an input.

    The order of inputs and outputs stays. A change of an input in place is not an output of ``forward``: what the
    program computes from it afterwards already uses the new value, so only the write-back to the caller is dropped.
    Writes to buffers stay.
    """
    import torch.utils._pytree as pytree

    graph, signature = program.graph, program.graph_signature
    out = graph.output_node()
    kept = [
        (arg, spec)
        for arg, spec in zip(out.args[0], signature.output_specs, strict=True)
        if hasattr(arg, "meta") and spec.kind.name in ("USER_OUTPUT", "BUFFER_MUTATION")
    ]
    out.args = (tuple(arg for arg, _ in kept),)
    signature.output_specs[:] = [spec for _, spec in kept]
    outputs = sum(spec.kind.name == "USER_OUTPUT" for _, spec in kept)
    inputs = sum(spec.kind.name == "USER_INPUT" for spec in signature.input_specs)
    call = program.module_call_graph[0].signature
    if call is None:
        return program
    args, kwargs = program.example_inputs or ((), {})
    leaves = pytree.tree_leaves((args, kwargs))
    program._example_inputs = (tuple(leaves), {})
    call.in_spec = pytree.tree_flatten((tuple(range(inputs)), {}))[1]
    call.out_spec = pytree.tree_flatten(tuple(range(outputs)))[1]
    drop_unreadable_guards(program)
    call.forward_arg_names = [spec.arg.name for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
    return program


def _same_value(graph: Graph, value: Node) -> Node:
    """A new node that computes ``value`` and that no optimiser merges with it before outputs get their names."""
    import torch

    if value.meta["val"].dtype is torch.bool:
        node = graph.call_function(torch.ops.aten.logical_and.default, (value, value))
    else:
        node = graph.call_function(torch.ops.aten.mul.Tensor, (value, 1))
    node.meta = {k: v for k, v in value.meta.items() if k in ("val", "stack_trace", "nn_module_stack")}
    return node


@graph_pass(fault="OpenVINO names a tensor once: returned twice, or returned unchanged, it loses or mixes its names")
def own_output_nodes(program: ExportedProgram) -> ExportedProgram:
    """Give each output a node of its own that is neither an input, nor a weight, nor another output."""
    graph = program.graph
    out = graph.output_node()
    seen: set[Node] = set()
    args: list[Any] = []
    for value, spec in zip(out.args[0], program.graph_signature.output_specs, strict=True):
        if hasattr(value, "meta") and (value in seen or value.op == "placeholder"):
            with graph.inserting_before(out):
                value = _same_value(graph, value)
            spec.arg.name = value.name
        elif hasattr(value, "meta"):
            seen.add(value)
        args.append(value)
    out.args = (tuple(args),)
    return program
