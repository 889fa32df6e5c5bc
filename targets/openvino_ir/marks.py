"""Which node of the program each op of an ``ov.Model`` came from, and taking the marks off again before it is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.marks import name_in

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = "edgeport_node"


def marking() -> Callable[[Any, Any], None]:
    """For the frontend's decoder: writes the name that a program's node carries onto each op converted from it."""

    def mark(decoder: Any, node: Any) -> None:
        name = name_in(getattr(getattr(decoder, "pt_module", None), "meta", {}).get("stack_trace"))
        if name is not None:
            node.get_rt_info()[_KEY] = name

    return mark


def mark_of(node: Any) -> str | None:
    """The name of the program's node that ``node`` came from; None for what the converter added."""
    info = node.get_rt_info()
    return str(info[_KEY].astype(str)) if _KEY in info else None


def present(model: Any) -> set[str]:
    """Every name that some computing op of the model carries."""
    computing = (n for n in model.get_ops() if n.get_type_name() != "Constant")
    return {name for name in map(mark_of, computing) if name is not None}


def clear(model: Any) -> None:
    """Take the marks off, so that they are not saved."""
    for node in model.get_ops():
        info = node.get_rt_info()
        if _KEY in info:
            del info[_KEY]
