"""Turn a converter's exception or a runtime's refusal into an error that names the op, its line and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from build.program import op_name, op_nodes, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

REMEDY = "Replace this op by others in the model, or build this model for a target that has it (preflight shows which)."

#: Edge and core names of an op's copying or out variant -> the name it has in an exported program.
_VARIANTS = ("_copy", "_with_indices", "_functional")


def _shape_text(node: Node) -> str:
    value = node.args[0].meta.get("val") if node.args and hasattr(node.args[0], "meta") else node.meta.get("val")
    return "" if not hasattr(value, "shape") else f" on shape {[str(s) for s in value.shape]}".replace("'", "")


def _stem(name: str) -> str:
    """``aten::view_copy.out`` -> ``view``."""
    stem = re.sub(r"^(torch\._?ops\.)?(aten|torchao|dim_order_ops|quantized_decomposed)(::|\.|_)", "", name)
    stem = stem.split(".")[0].lstrip("_")
    for suffix in _VARIANTS:
        stem = stem.removesuffix(suffix)
    return stem


def find(program: ExportedProgram, names: Iterable[str]) -> Node | None:
    """The first node of the program whose op is one of ``names`` (in any of ExecuTorch's spellings)."""
    stems = {_stem(n) for n in names}
    nodes = list(op_nodes(program))
    for node in nodes:
        if _stem(op_name(node)) in stems:
            return node
    longer = [s for s in stems if len(s) > 3]
    for node in nodes:
        mine = _stem(op_name(node))
        if mine and any(mine in s or s in mine for s in longer):
            return node
    return None


def error_for(program: ExportedProgram, names: list[str], why: str, remedy: str = REMEDY) -> LoweringError:
    """An error about the first of the ops ``names``."""
    node = find(program, names)
    if node is None:
        op = names[0] if names else "the whole program"
        return LoweringError(f"ExecuTorch cannot express this program: {why}", op=op, remedy=remedy)
    return LoweringError(
        f"ExecuTorch cannot express {op_name(node)}{_shape_text(node)}: {why}",
        op=op_name(node),
        source=source_of(node) or f"node '{node.name}'",
        remedy=remedy,
    )


def from_exception(program: ExportedProgram, error: BaseException) -> LoweringError:
    """An error about the op that the converter's exception speaks of."""
    text = f"{type(error).__name__}: {error}"
    names = re.findall(r"While executing %(\w+)", text)
    names += re.findall(r"(?:aten|torchao)(?:::|\.)\w+(?:\.\w+)?", text)
    names += re.findall(r"\baten_(\w+?)_(?:default|tensor|scalar|int|dim)\w*\b", text)
    return error_for(program, names, _first_lines(text))


def _first_lines(text: str, limit: int = 300) -> str:
    return " ".join(text.split())[:limit]


def missing_operators(executorch_program: Any) -> list[str]:
    """Operators that the file calls and the runtime does not have (``aten::sort.values``)."""
    from executorch.runtime import Runtime

    have = Runtime.get().operator_registry.operator_names
    called = [
        f"{op.name}.{op.overload}" if op.overload else op.name
        for plan in executorch_program.execution_plan
        for op in plan.operators
    ]
    return [name for name in called if name not in have]
