"""Do flatbuffers have the same structure, and the error that says where they don't."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from build.errors import LoweringError
from targets.tflite import flatbuffer

_REMEDY = (
    "Make that dimension static, declare a range of at most 16 sizes (each becomes a signature), or rewrite the op."
)


class CannotGeneralise(LoweringError):
    """The flatbuffers differ in a way that no run-time computation of ours expresses."""


class NeedsLargest(CannotGeneralise):
    """A table depends on the size: the flatbuffer at the upper bounds may hold all of it."""


def cannot_generalise(what: str, op: str | None = None) -> CannotGeneralise:
    """The error for ``what``, with the way out."""
    return CannotGeneralise(
        f"LiteRT cannot take the dynamic range: {what}", op=op or "dynamic dimension", remedy=_REMEDY
    )


def same_structure(models: Sequence[Any]) -> bool:
    """Whether :func:`check_structure` holds for every subgraph."""
    try:
        for index in range(len(models[0].subgraphs)):
            check_structure(models, [m.subgraphs[index] for m in models])
    except (CannotGeneralise, IndexError):
        return False
    return True


def check_structure(models: Sequence[Any], graphs: Sequence[Any]) -> None:
    """The graphs have the same tensors, operators and connections."""
    counts = {(len(g.operators), len(g.tensors)) for g in graphs}
    if len(counts) > 1:
        names = [[flatbuffer.opcode_name(m, o) for o in g.operators] for m, g in zip(models, graphs, strict=True)]
        raise cannot_generalise(_structure_difference(names))
    for operators in zip(*(g.operators for g in graphs), strict=True):
        kinds = [flatbuffer.opcode_name(m, o) for m, o in zip(models, operators, strict=True)]
        if len(set(kinds)) > 1 or len({(tuple(o.inputs), tuple(o.outputs)) for o in operators}) > 1:
            raise cannot_generalise(
                f"the sequence of operators depends on the size: {' against '.join(kinds)}", kinds[0]
            )


def _structure_difference(names: Sequence[Sequence[str]]) -> str:
    first, other = Counter(names[0]), next((Counter(n) for n in names[1:] if Counter(n) != Counter(names[0])), None)
    if other is None:
        return "the number of tensors depends on the size"
    parts = [f"{k} ({first[k]} against {other[k]})" for k in sorted(first | other) if first[k] != other[k]]
    return f"the graph itself depends on the size: {', '.join(parts)}"


def options(operator: Any) -> str:
    """The operator's options as text to compare."""

    def plain(options: Any) -> Any:
        if options is None:
            return None
        return sorted((k, v.tolist() if hasattr(v, "tolist") else v) for k, v in vars(options).items())

    return repr((plain(operator.builtinOptions), plain(operator.builtinOptions2)))
