"""Count which nodes XNNPACK takes and which run on the portable kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

from targets.contract import Coverage

#: nodes that hold structure and compute nothing.
_STRUCTURE = ("getitem", "alloc", "sym_size", "executorch_call_delegate")


def count(edge_program: Any) -> Coverage:
    """Coverage of a partitioned edge program: nodes inside lowered modules against nodes outside them."""
    import torch

    delegated = 0
    fallback: Counter[str] = Counter()
    for name, module in edge_program.graph_module.named_modules():
        if not isinstance(module, torch.fx.GraphModule) or "lowered_module" in name:
            continue
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            op = _edge_name(node)
            if op == "executorch_call_delegate":
                lowered = getattr(module, str(node.args[0].target))
                inner = lowered.original_module.graph.nodes
                delegated += sum(1 for n in inner if n.op == "call_function" and not _is_structure(_edge_name(n)))
            elif not _is_structure(op):
                fallback[op] += 1
    return Coverage(
        delegated=delegated,
        fallback=dict(sorted(fallback.items())),
        method="call_function nodes of the partitioned edge program; memory views and size reads left out",
    )


def _is_structure(op: str) -> bool:
    return any(op == s or op.startswith(f"aten.{s}") for s in _STRUCTURE) or op.startswith(("_operator", "memory."))


def _edge_name(node: Any) -> str:
    """``aten.view_copy.default`` for an edge op, ``memory.view`` for a view without a copy."""
    target = node.target
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", "")
    if module.endswith("exir.memory"):
        return f"memory.{name}"
    if module == "_operator" and name != "getitem":
        return f"_operator.{name}"
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(name)
    return schema.name.replace("::", ".") + "." + (schema.overload_name or "default")
