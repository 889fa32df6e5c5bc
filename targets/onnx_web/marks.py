"""Which node of the program each op of an ONNX graph came from."""

from __future__ import annotations

from typing import Any

from build.legalize.marks import name_in

#: where the exporter puts a node's stack trace, on whose last line the program's node is named.
_KEY = "pkg.torch.onnx.stack_trace"


def mark_of(node: Any) -> str | None:
    """The name of the program's node that ``node`` came from; None for what the converter added."""
    return next((name_in(p.value) for p in node.metadata_props if p.key == _KEY), None)


def present(graph: Any) -> set[str]:
    """Every name that some op carries."""
    return {name for name in map(mark_of, graph.node) if name is not None}
