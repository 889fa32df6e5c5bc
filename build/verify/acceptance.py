"""When a quantised artifact is accepted: it is a new model, so its metric and its noise decide, not single elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from build.errors import InputError
from build.record import ProgramRecord
from build.verify.accuracy import Accuracy


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Limits of one precision.

    Attributes:
        max_metric_drop: largest loss of the metric against PyTorch.
        min_snr_db: least signal-to-noise ratio of every floating output, over the evaluation calls; without any,
            over the example and the size points.
    """

    max_metric_drop: float
    min_snr_db: float


#: Defaults. 8-bit weights alone give 40 to 59 dB on sound models, calibrated activations 20 to 47 on most and 10 on
#: transformers with outlier channels; below 5 dB a third of the signal is noise, whatever the metric says.
DEFAULTS: dict[str, Acceptance] = {
    "int8-weight": Acceptance(max_metric_drop=0.01, min_snr_db=20.0),
    "int8-dynamic": Acceptance(max_metric_drop=0.02, min_snr_db=15.0),
    "int8-static": Acceptance(max_metric_drop=0.02, min_snr_db=8.0),
    "int4-weight": Acceptance(max_metric_drop=0.05, min_snr_db=5.0),
}

#: A program that brings its own quantisation is compared with itself: only rounding at step edges may differ.
OWN_QUANTISATION = Acceptance(max_metric_drop=0.01, min_snr_db=20.0)


def acceptance_for(record: ProgramRecord, precision: str, max_metric_drop: float | None) -> Acceptance:
    """The limits for a precision: the user's, else the model's, else the defaults.

    Raises:
        InputError: the model's spec names a limit that does not exist.
    """
    base = OWN_QUANTISATION if record.quantized else DEFAULTS[precision]
    own = dict(record.tolerances.get(precision, {}))
    unknown = set(own) - {"max_metric_drop", "min_snr_db"}
    if unknown:
        raise InputError(
            f"model '{record.name}': tolerances of {precision} name {', '.join(sorted(unknown))}",
            remedy="A quantised precision has max_metric_drop and min_snr_db.",
        )
    if max_metric_drop is not None:
        own["max_metric_drop"] = max_metric_drop
    return Acceptance(
        max_metric_drop=own.get("max_metric_drop", base.max_metric_drop),
        min_snr_db=own.get("min_snr_db", base.min_snr_db),
    )


def noise_problems(accuracy: Accuracy, limits: Acceptance) -> list[str]:
    """Outputs with more noise than the limits allow."""
    return [
        f"output '{name}' has an SNR of {found.snr_db:.1f} dB, the limit is {limits.min_snr_db:g} dB"
        for name, found in accuracy.agreement.items()
        if found.signal and not math.isnan(found.snr_db) and found.snr_db < limits.min_snr_db
    ]


def metric_problem(accuracy: Accuracy, limit: float) -> str | None:
    """A metric that lost more than the limit."""
    metric = accuracy.result()
    if metric is None or metric.drop <= limit + 1e-9:
        return None
    return (
        f"{metric.name} is {metric.value:.4f}, PyTorch's is {metric.reference:.4f}: a loss of {metric.drop:.4f}, the "
        f"limit is {limit:g}"
    )
