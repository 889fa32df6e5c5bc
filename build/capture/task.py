"""What a program is for: which output decides, and which metric judges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from build.errors import InputError
from models.spec import Call, ModelSpec
from targets.contract import Signature


@dataclass(frozen=True, kw_only=True)
class Task:
    """See the fields of the same names in ``build.record.ProgramRecord``."""

    decision_output: str | None = None
    metric: str | None = None
    metric_output: str | None = None
    labels: tuple[str, ...] = ()


def task_of(spec: ModelSpec | None, signature: Signature, evaluation: Sequence[Call]) -> Task:
    """From the spec; without one, what labelled calls tell: class scores in the first output that has room for them.

    Raises:
        InputError: the spec speaks of an output that the program does not return.
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
    return Task(
        decision_output=spec.output.output if spec.output.kind == "classes" else None,
        metric=spec.metric,
        metric_output=spec.output.output,
        labels=tuple(spec.output.labels),
    )


def _derived(signature: Signature, evaluation: Sequence[Call]) -> Task:
    labels = [c.label for c in evaluation]
    known = [x for x in labels if x is not None]
    if not known or len(known) != len(labels):
        return Task()
    for output in signature.outputs:
        classes = output.shape[-1] if output.shape else 0
        if output.dtype.startswith("float") and isinstance(classes, int) and classes > max(known):
            return Task(decision_output=output.name, metric="top1_accuracy", metric_output=output.name)
    return Task()
