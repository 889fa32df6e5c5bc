"""Keyword arguments that coremltools never reads: left in a program, they would be dropped without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from build.program import op_name, op_nodes, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: op -> keywords that its conversion function reads. Source: coremltools 9.0,
#: converters/mil/frontend/torch/ops.py (``_get_kwinputs``); ops that are not listed read none.
READ: dict[str, frozenset[str]] = {
    name: frozenset(keywords.split())
    for name, keywords in {
        "aten._scaled_dot_product_flash_attention_for_cpu.default": "attn_mask scale",
        "aten._to_copy.default": "dtype",
        "aten.addmm.default": "beta alpha",
        "aten.baddbmm.default": "beta alpha",
        "aten.cumsum.default": "dtype",
        "aten.div.Tensor_mode": "rounding_mode",
        "aten.full.default": "dtype",
        "aten.linalg_vecdot.default": "dim",
        "aten.meshgrid.indexing": "indexing",
        "aten.ones.default": "dtype",
        "aten.ones_like.default": "dtype",
        "aten.scaled_dot_product_attention.default": "scale",
        "aten.scatter.reduce": "reduce",
        "aten.scatter.value_reduce": "reduce",
        "aten.searchsorted.Tensor": "right side",
        "aten.searchsorted.Scalar": "right side",
        "aten.std.correction": "correction keepdim",
        "aten.var.correction": "correction keepdim",
    }.items()
}

#: keywords that say nothing about the values of the result.
_MEANINGLESS = frozenset(
    (
        *("layout", "device", "pin_memory", "memory_format", "non_blocking"),
        *("sparse_grad", "output_size", "path", "implicit"),
    )
)

#: what a creation op that never reads dtype= makes.
_CREATED = "float32"


def _made_without(node: Node) -> str | None:
    """The dtype that the conversion gives when it does not read ``dtype=``; None when that is not known."""
    name = op_name(node)
    first = node.args[0] if node.args else None
    value = getattr(first, "meta", {}).get("val")
    if name.startswith("aten.arange."):
        bounds = [getattr(a, "meta", {}).get("val", a) for a in node.args]
        whole = not any(isinstance(b, float) or type(b).__name__ == "SymFloat" for b in bounds)
        return "int64" if whole else _CREATED
    if value is not None and hasattr(value, "dtype"):
        return str(value.dtype).removeprefix("torch.")
    return _CREATED


def unread(node: Node) -> list[str]:
    """Keywords of a call that change its result and that coremltools would drop."""
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return []
    read = READ.get(op_name(node), frozenset())
    dropped: list[str] = []
    for argument in schema.arguments:
        if not argument.kwarg_only or argument.name in read | _MEANINGLESS:
            continue
        value: Any = node.kwargs.get(argument.name)
        if value is None or (argument.has_default_value() and value == argument.default_value):
            continue
        if argument.name == "dtype" and str(value).removeprefix("torch.") == _made_without(node):
            continue
        dropped.append(argument.name)
    return dropped


def refuse_unread(program: ExportedProgram) -> None:
    """Stop at the first keyword that would be lost.

    Raises:
        LoweringError: names the op, the keyword, its value and the source line.
    """
    for node in op_nodes(program):
        for keyword in unread(node):
            raise LoweringError(
                f"coremltools never reads {keyword}={node.kwargs[keyword]!r} of {op_name(node)} and goes on without it",
                op=op_name(node),
                source=source_of(node),
                remedy=f"Write the model without {keyword}=, for example with a cast or a product of its own.",
            )
