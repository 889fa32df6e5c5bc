"""The model's task metric of an artifact, next to PyTorch's, and what changed. numpy only.

Metrics, on the evaluation set:

- ``top1_accuracy``: share of labelled rows whose highest score is the label's.
- ``top1_agreement``: share of rows whose highest score is where PyTorch's is.
- ``cosine_agreement``: mean cosine similarity of the rows of the output with PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from build.manifest import snr_to_json

if TYPE_CHECKING:
    from targets.contract import Array


@dataclass
class Agreement:
    """Signal and noise of one output, summed over calls.

    Attributes:
        nonfinite: elements whose NaN or infinity differs from PyTorch's; they are in none of the other figures.
    """

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0
    nonfinite: int = 0

    def add(self, got: Array, want: Array) -> None:
        """Take in one call's values."""
        a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
        both = np.isfinite(a) & np.isfinite(b)
        self.nonfinite += int(np.count_nonzero(~both & ~((np.isnan(a) & np.isnan(b)) | (a == b))))
        a, b = a[both], b[both]
        self.signal += float(b @ b)
        self.noise += float(np.sum((a - b) ** 2))
        self.other += float(a @ a)
        self.product += float(a @ b)

    @property
    def snr_db(self) -> float:
        """10·log10(signal / noise); inf when equal."""
        if self.noise == 0:
            return math.inf
        return -math.inf if self.signal == 0 else 10 * math.log10(self.signal / self.noise)

    @property
    def cosine(self) -> float:
        """Cosine similarity; 1 when both are zero."""
        norm = math.sqrt(self.signal) * math.sqrt(self.other)
        return self.product / norm if norm else float(self.signal == self.other)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric's name, its value for the artifact and PyTorch's."""

    name: str
    value: float
    reference: float

    @property
    def drop(self) -> float:
        """What the artifact loses."""
        return self.reference - self.value

    def to_json(self) -> dict[str, Any]:
        """``{"name", "value", "reference"}``."""
        return {"name": self.name, "value": self.value, "reference": self.reference}


@dataclass
class Accuracy:
    """Gathers evaluation calls one by one.

    Attributes:
        metric: its name; None measures nothing but the agreement of outputs.
        output: the output that it reads.
    """

    metric: str | None
    output: str | None
    labels: Sequence[str] = ()
    agreement: dict[str, Agreement] = field(default_factory=dict)
    _scores: list[tuple[float, float]] = field(default_factory=list)
    _classes: dict[int, list[int]] = field(default_factory=dict)

    def add(self, got: dict[str, Array], want: dict[str, Array], label: int | None) -> None:
        """Take in one evaluation call: outputs by name, shapes already found equal."""
        for name, reference in want.items():
            self.agreement.setdefault(name, Agreement()).add(got[name], reference)
        if self.metric is None or self.output is None:
            return
        mine, theirs = (x[self.output].reshape(-1, x[self.output].shape[-1]) for x in (got, want))
        if self.metric == "cosine_agreement":
            self._scores += [(_cosine(a, b), 1.0) for a, b in zip(mine, theirs, strict=True)]
            return
        before, after = theirs.argmax(-1), mine.argmax(-1)
        if self.metric == "top1_agreement":
            self._scores += [(float(a == b), 1.0) for a, b in zip(after, before, strict=True)]
        elif label is not None:
            self._scores += [(float(a == label), float(b == label)) for a, b in zip(after, before, strict=True)]
        for a, b in zip(after, before, strict=True):
            self._count(int(a), int(b), label)

    def _count(self, after: int, before: int, label: int | None) -> None:
        """Per class: rows, right in the artifact, right in PyTorch (without labels: PyTorch is right)."""
        right = before if self.metric == "top1_agreement" or label is None else label
        row = self._classes.setdefault(right, [0, 0, 0])
        row[0] += 1
        row[1] += after == right
        row[2] += before == right

    def result(self) -> Metric | None:
        """The metric; None where there is none, or nothing to measure it on."""
        if self.metric is None or not self._scores:
            return None
        value, reference = (float(np.mean([s[i] for s in self._scores])) for i in (0, 1))
        return Metric(name=self.metric, value=round(value, 6), reference=round(reference, 6))

    def to_json(self) -> dict[str, Any]:
        """For the manifest: rows judged, agreement per output, and per class (those with a loss first)."""
        return {
            "rows": len(self._scores),
            "outputs": {
                name: {
                    "snr_db": snr_to_json(round(a.snr_db, 2)),
                    "cosine": round(a.cosine, 6),
                    "nonfinite": a.nonfinite,
                }
                for name, a in self.agreement.items()
            },
            "per_class": [
                {
                    "class": number,
                    "label": self.labels[number] if number < len(self.labels) else None,
                    "rows": rows,
                    "correct": correct,
                    "reference_correct": reference,
                }
                for number, (rows, correct, reference) in sorted(
                    self._classes.items(), key=lambda item: (item[1][1] - item[1][2], item[0])
                )
            ],
        }


def _cosine(a: Array, b: Array) -> float:
    found = Agreement()
    found.add(a, b)
    return 0.0 if found.nonfinite else found.cosine
