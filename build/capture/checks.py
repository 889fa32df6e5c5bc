"""Programs that must not go on: captured in training mode, or without a home on any target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.errors import InputError
from build.program import op_name, op_nodes, source_of, user_outputs

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

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
