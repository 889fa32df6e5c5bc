"""The calls that a model's spec gives, checked as strictly as those of a file (``build.calls``)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from build.calls import check_value
from build.errors import InputError
from build.program import torch_dtype_name
from models.spec import Call
from targets.contract import Signature

if TYPE_CHECKING:
    import torch


def fitting(calls: Sequence[Call], signature: Signature, where: str) -> list[Call]:
    """The calls, each with the program's inputs in the program's order.

    Args:
        where: the set, as messages name it.

    Raises:
        InputError: an id that is empty or used twice, an input that is missing, unknown, no tensor or of another
            shape or dtype than the program takes, or a label that is no whole number from 0.
    """
    found: dict[str, Call] = {}
    for call in calls:
        if not isinstance(call, Call):
            raise InputError(f"{where} holds a {type(call).__name__}, not a Call", remedy="See models/spec.py.")
        if not isinstance(call.id, str) or not call.id or not call.id.isprintable():
            raise InputError(f"{where}: call id {call.id!r:.80} is no printable text", remedy="Number the calls.")
        if call.id in found:
            raise InputError(
                f"{where}: two calls have the id '{call.id}'", remedy="Ids are unique within a set: number the calls."
            )
        here = f"{where}: call '{call.id}'"
        found[call.id] = Call(id=call.id, inputs=_inputs(call, signature, here), label=_label(call.label, here))
    return list(found.values())


def _inputs(call: Call, signature: Signature, where: str) -> dict[str, torch.Tensor]:
    import torch

    if not isinstance(call.inputs, Mapping):
        raise InputError(
            f"{where}: its inputs are a {type(call.inputs).__name__}", remedy="Give a dict of input name -> tensor."
        )
    names = [s.name for s in signature.inputs]
    for name in call.inputs:
        if name not in names:
            raise InputError(
                f"{where} has a value for '{name}', which is no input of the program (it takes {', '.join(names)})",
                remedy="Rename or remove it.",
            )
    roots: dict[str, tuple[int, str]] = {}
    found = {}
    for spec in signature.inputs:
        text = f"{where}, input '{spec.name}'"
        if spec.name not in call.inputs:
            raise InputError(
                f"{where} has no value for input '{spec.name}'",
                remedy=f"Each call needs a tensor for every input: {', '.join(names)}.",
            )
        value = call.inputs[spec.name]
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{text}: it is a {type(value).__name__}, not a tensor", remedy="Convert it to a tensor.")
        check_value(text, torch_dtype_name(value.dtype), tuple(value.shape), spec, roots)
        found[spec.name] = value.detach().cpu()
    return found


def _label(label: Any, where: str) -> int | None:
    """A label as a plain number: what came from an array writes no JSON."""
    if label is None:
        return None
    try:
        number = operator.index(label)
    except (TypeError, ValueError, RuntimeError):
        number = -1
    if number < 0 or isinstance(label, bool):
        raise InputError(
            f"{where}: its label is {label!r:.80}", remedy="A label is one whole number, counted from 0, or None."
        )
    return number
