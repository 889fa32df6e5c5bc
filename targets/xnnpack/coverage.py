"""What the partitioned program holds: nodes that XNNPACK takes, nodes on the portable kernels, ops that lose NaN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from build.legalize.marks import Kept, name_in
from build.program import source_of
from targets.contract import Coverage
from targets.xnnpack.partition import edge_name

#: Names of nodes that hold structure, read sizes or compute on them, and touch no tensor's data.
_STRUCTURE = ("getitem", "executorch_call_delegate", "view", "alloc", "sym_size", "sym_numel")

#: Ops that lose NaN (or make it out of infinity) wherever they run, and those that do so inside XNNPACK. Measured on
#: executorch 1.5.1, one x86-64 CPU, with NaN, infinities and zeros, up to eight ops of an input to a program. Attention
#: is not listed: there NaN stays where PyTorch's own kernel gives zeros, so that a build with such a call fails.
_LOSES_NAN = ("aten.max_pool2d.default", "aten.max_pool2d_with_indices.default")
_LOSES_NAN_IN_XNNPACK = ("aten.avg_pool2d.default", "aten.upsample_bilinear2d.vec")


def _nodes(edge_program: Any) -> Iterator[tuple[Any, bool]]:
    """Every computing node, and whether XNNPACK takes it."""
    import torch

    for name, module in edge_program.graph_module.named_modules():
        if not isinstance(module, torch.fx.GraphModule) or "lowered_module" in name:
            continue
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            if edge_name(node) == "executorch_call_delegate":
                lowered = getattr(module, str(node.args[0].target))
                inner = lowered.original_module.graph_module.graph.nodes
                yield from ((n, True) for n in inner if n.op == "call_function" and not _is_structure(n))
            elif not _is_structure(node) and edge_name(node) != "aten.view_copy.default":
                # A reshape outside XNNPACK becomes a view of the same memory when the file is written.
                yield node, False


#: Edge op -> positions of operands that may be its weight.
_WEIGHTS = {
    "aten.convolution.default": (1,),
    "aten.linear.default": (1,),
    "aten.addmm.default": (2,),
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
    "aten.embedding.default": (0,),
}
#: How torch.export's placeholders of parameters, buffers and constants begin.
_STORED = ("p_", "b_", "c_", "_lifted_tensor_constant", "_tensor_constant")
_VIEWS = ("aten.permute_copy.default", "aten.t_copy.default", "aten.transpose_copy.int", "aten.view_copy.default")


def float_weights(edge_program: Any, kept: Kept) -> dict[str, int]:
    """Op -> count of the ops over a stored weight of floats, those that were to stay float left out.

    Raises:
        InputError: nothing is left of a node that was to stay float.
    """
    nodes = [node for node, _ in _nodes(edge_program)]
    names = {name_in(n.meta.get("stack_trace")) for n in nodes} - {None}
    region = kept.region({str(n) for n in names}).ops if kept.names else frozenset()
    found: Counter[str] = Counter()
    for node in nodes:
        if name_in(node.meta.get("stack_trace")) in region:
            continue
        operands = [node.args[p] for p in _WEIGHTS.get(edge_name(node), ())]
        if any(_is_stored_float(n) for n in operands):
            found[edge_name(node)] += 1
    return dict(sorted(found.items()))


def _is_stored_float(node: Any) -> bool:
    """Whether a weight is a matrix of floats that is stored so, or views of one."""
    while node.op == "call_function" and edge_name(node) in _VIEWS:
        node = node.args[0]
    if node.op != "placeholder" or not node.name.startswith(_STORED):
        return False
    return bool(node.meta["val"].is_floating_point() and node.meta["val"].dim() > 1)


def _is_structure(node: Any) -> bool:
    import torch

    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    if values and not any(isinstance(v, torch.Tensor) for v in values):
        return True
    return edge_name(node).removeprefix("aten.").split(".")[0] in _STRUCTURE


def count(edge_program: Any) -> Coverage:
    """Nodes inside lowered modules against nodes outside them."""
    delegated = 0
    fallback: Counter[str] = Counter()
    for node, taken in _nodes(edge_program):
        if taken:
            delegated += 1
        else:
            fallback[edge_name(node)] += 1
    return Coverage(
        delegated=delegated,
        fallback=dict(sorted(fallback.items())),
        method="nodes of the partitioned edge program; memory views and size arithmetic left out",
    )


def loses_nan(edge_program: Any) -> tuple[str, ...]:
    """Ops through which NaN or infinity does not pass as in PyTorch, with their source lines, each once."""
    found: dict[str, None] = {}
    for node, taken in _nodes(edge_program):
        name = edge_name(node)
        if name in _LOSES_NAN or (taken and name in _LOSES_NAN_IN_XNNPACK):
            source = source_of(node)
            found[f"{name} at {source}" if source else name] = None
    return tuple(found)
