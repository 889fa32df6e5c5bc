"""What a program is for: which output decides, and which metric judges it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from build.capture.reference import ReferenceCall
from build.errors import InputError
from models.spec import Call, ModelSpec
from targets.contract import Signature, TensorSpec


@dataclass(frozen=True, kw_only=True)
class Task:
    """See the fields of the same names in ``build.record.ProgramRecord``.

    Attributes:
        warnings: labels that were given, and why nothing is measured with them.
    """

    decision_output: str | None = None
    metric: str | None = None
    metric_output: str | None = None
    labels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def task_of(spec: ModelSpec | None, signature: Signature, evaluation: Sequence[Call]) -> Task:
    """From the spec; without one, what labelled calls tell: class scores in the first output that has room for them.

    Raises:
        InputError: the spec speaks of an output that the program does not return; a label is no class of the program.
    """
    if spec is None:
        return _derived(signature, evaluation)
    names = [s.name for s in signature.outputs]
    if spec.output.output not in names:
        raise InputError(
            f"model '{spec.name}' says its main output is '{spec.output.output}', but the program returns "
            f"{', '.join(names)}",
            remedy="Correct `output` or `output_names` in the model's spec.",
        )
    if spec.output.kind == "classes":
        _check_labels(signature.outputs[names.index(spec.output.output)], evaluation)
    return Task(
        decision_output=spec.output.output if spec.output.kind == "classes" else None,
        metric=spec.metric,
        metric_output=spec.output.output,
        labels=tuple(spec.output.labels),
    )


def check_rows(task: Task, calls: Sequence[ReferenceCall]) -> None:
    """A label is of one example: several rows of scores would all be held against it.

    Raises:
        InputError: a labelled call has scores of several examples, or of none.
    """
    if task.metric != "top1_accuracy" or task.metric_output is None:
        return
    for call in calls:
        rows = math.prod(call.outputs[task.metric_output].shape[:-1])
        if call.record.label is not None and rows != 1:
            raise InputError(
                f"call '{call.record.id}' has one label, but output '{task.metric_output}' holds {rows} rows of scores",
                remedy="Give every labelled example a call of its own (batch 1), or leave the labels out.",
            )


def _derived(signature: Signature, evaluation: Sequence[Call]) -> Task:
    known = [c.label for c in evaluation if c.label is not None]
    if not known:
        return Task()
    scores = [o for o in signature.outputs if o.dtype.startswith("float") and _classes(o) > 1]
    if not scores:
        return Task(warnings=("the labels are not used: no output holds class scores along its last axis",))
    chosen = next((o for o in scores if _classes(o) > max(known)), None)
    if chosen is None:
        _check_labels(max(scores, key=_classes), evaluation)
        return Task()
    if len(known) < len(evaluation):
        without = [c.id for c in evaluation if c.label is None]
        some = f"{len(without)} of {len(evaluation)} evaluation calls have none ('{without[0]}')"
        return Task(warnings=(f"the labels are not used: {some}",))
    return Task(decision_output=chosen.name, metric="top1_accuracy", metric_output=chosen.name)


def _classes(output: TensorSpec) -> int:
    """How many classes an output could tell apart: the size of its last axis; 0 where that is not fixed."""
    last = output.shape[-1] if output.shape else 0
    return last if isinstance(last, int) else 0


def _check_labels(output: TensorSpec, evaluation: Sequence[Call]) -> None:
    classes = _classes(output)
    for call in evaluation:
        if classes and call.label is not None and not 0 <= call.label < classes:
            raise InputError(
                f"label {call.label} of call '{call.id}' is no class of the program, which has {classes} "
                f"(last axis of output '{output.name}')",
                remedy=f"Labels count from 0: give 0 to {classes - 1}, or data of the program's own classes.",
            )
