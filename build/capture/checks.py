"""Programs that must not go on: captured in training mode, or without a home on any target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from build.errors import InputError
from build.program import op_name, op_nodes, source_of, user_outputs
from models.spec import Call

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Node

#: More tensors than this are counted, not named.
_NAMED = 5
_EVAL = "Call model.eval() before torch.export.export, and export again."


def _argument(node: Node, name: str, position: int) -> Any:
    return node.kwargs.get(name, node.args[position] if len(node.args) > position else None)


def _trains(node: Node) -> str | None:
    """What this node does only in training mode; None when it is fine."""
    name = op_name(node)
    packet = name.split(".")[1] if name.startswith("aten.") else ""
    if packet in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"):
        probability, train = _argument(node, "p", 1), _argument(node, "train", 2)
        return "drops values at random" if train and probability else None
    # With no running statistics, batch statistics are what the module computes in eval mode as well.
    if packet in ("batch_norm", "cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit"):
        has_stats = _argument(node, "running_mean", 3) is not None
        return "normalises with the batch's own statistics" if has_stats and _argument(node, "training", 5) else None
    if packet in ("_native_batch_norm_legit_functional", "batch_norm_with_update", "_batch_norm_with_update"):
        return "normalises with the batch's own statistics"
    if packet in ("rrelu", "rrelu_with_noise"):
        train = _argument(node, "training", 3 if packet == "rrelu" else 4)
        return "draws its slope at random" if train else None
    return None


def refuse_training_mode(program: ExportedProgram) -> None:
    """A program captured in training mode gives other answers on every call, or for every batch.

    Raises:
        InputError: naming the op, its source line and what to do.
    """
    for node in op_nodes(program):
        reason = _trains(node)
        if reason is not None:
            raise InputError(
                f"the program was captured in training mode: {op_name(node)} {reason}",
                op=op_name(node),
                source=source_of(node),
                remedy=_EVAL,
            )


def constant_outputs(program: ExportedProgram) -> dict[str, Any]:
    """Outputs that are not tensors: position in the flattened outputs -> value (None, numbers, strings)."""
    return {str(i): v for i, v in enumerate(user_outputs(program)) if not hasattr(v, "meta")}


def odd_weights(program: ExportedProgram) -> list[str]:
    """Warnings: weights that hold NaN or infinity, and buffers that hold NaN (masks hold infinity by design)."""
    parameters = program.graph_signature.parameters
    found = []
    for name, value in {**program.state_dict, **program.constants}.items():
        what = odd_value(value)
        if what == "NaN" or (what is not None and name in parameters):
            found.append(f"{'weight' if name in parameters else 'buffer'} '{name}' holds {what}")
    more = [f"and {len(found) - _NAMED} more tensors hold NaN or infinity"] if len(found) > _NAMED else []
    return [*found[:_NAMED], *more]


def odd_calls(calls: Sequence[Call]) -> list[str]:
    """Warnings: evaluation calls that hold NaN or infinity, counted, with the first of them."""
    found: Mapping[str, list[str]] = {"NaN": [], "infinity": []}
    for call in calls:
        kinds = {what: name for name, value in call.inputs.items() if (what := odd_value(value))}
        for what, name in kinds.items():
            found[what].append(f"call '{call.id}', input '{name}'")
    return [
        f"{len(places)} of {len(calls)} evaluation calls hold {what} ({places[0]}): targets differ in what they make "
        "of it"
        for what, places in found.items()
        if places
    ]


def odd_value(value: Any) -> str | None:
    """``NaN`` or ``infinity``, where a tensor holds it."""
    import torch

    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    wide: torch.Tensor = value.detach().float() if value.element_size() == 1 else value.detach()
    if bool(wide.isnan().any()):
        return "NaN"
    return "infinity" if bool(wide.isinf().any()) else None
