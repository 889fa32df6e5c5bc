"""Whether what a measurement says of itself can be: figures against raw samples, counts, metrics. Standard library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from build.errors import RejectedResultError
from device_bench.statistics import summarise
from device_bench.store.text import plain

#: figures of a measurement that follow from its samples: how far the file's may be off.
_IN_MS = ("min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms", "stdev_ms")
DERIVED = {"samples": 0.0, **dict.fromkeys(_IN_MS, 2e-6), "spread": 1.01e-4, "drift": 1.01e-4}
#: metric -> its smallest and largest value; the metrics are those of ``build/verify/accuracy.py``.
_RANGES = {"top1_accuracy": (0.0, 1.0), "top1_agreement": (0.0, 1.0), "cosine_agreement": (-1.0, 1.0)}
_ROUNDING = 1.01e-6
#: examples of a run where nobody chose a batch: more are no program's, and would let any rate pass.
_MOST_EXAMPLES = 1 << 20
_COUNTS = ("calls", "decisions", "changed_decisions", "near_ties", "nonfinite")
_HOST_COUNTS = ("calls", "differing", "changed_decisions", "near_ties")


def check(value: Mapping[str, Any], samples: Sequence[int]) -> None:
    """A measurement that ended well and keeps to its schema.

    Raises:
        RejectedResultError: a figure is not that of the samples, or one that cannot be.
    """
    _check_statistics(value["statistics"], samples)
    _check_rate(value, len(samples))
    _not_negative("", value, ("load_ms", "first_ms", "timer_cost_ns", "loop_ns"))
    _not_negative("peak memory: ", value["memory"], ("peak_mb",))
    _not_negative("artifact: ", value["artifact"], ("bytes",))
    if value["accuracy"] is not None:
        _check_accuracy(value["accuracy"])
    if value["host"] is not None:
        _not_negative("host: ", value["host"], (*_HOST_COUNTS, "max_abs_diff"))


def check_identity(identity: Mapping[str, Any], folder: str | None) -> None:
    """What names a measurement.

    Args:
        folder: that the file lies in, which the lab calls by the device; None where that is not known.

    Raises:
        RejectedResultError: the device is another than the folder's, or threads or batch are below 1.
    """
    if folder is not None and identity["device"] != folder:
        raise RejectedResultError(
            f"its device is {plain(repr(identity['device']), 80)}, its folder is {plain(repr(folder), 80)}"
        )
    for name in ("threads", "batch"):
        if identity[name] is not None and identity[name] < 1:
            raise RejectedResultError(f"its {name} is {identity[name]}, below 1")


def _check_statistics(told: Mapping[str, Any], samples: Sequence[int]) -> None:
    right = summarise(samples).to_json()
    for name, off in DERIVED.items():
        one, found = told[name], right[name]
        if (one is None) != (found is None) or not math.isclose(one or 0, found or 0, rel_tol=1e-6, abs_tol=off):
            raise RejectedResultError(f"its {name} is {one}, its samples come to {found}")


def _check_rate(value: Mapping[str, Any], count: int) -> None:
    """``per_second`` is runs over the loop's time, times the examples of a run: its batch where one was chosen."""
    told, batch = value["statistics"]["per_second"], value["measurement"]["batch"]
    runs = count * 1e9 / max(value["loop_ns"], 1)
    examples = batch if batch is not None else max(round(min(told / runs, _MOST_EXAMPLES)), 1)
    right = runs * examples
    # It is written with three digits after the point.
    if told <= 0 or not math.isclose(told, right, rel_tol=1e-9, abs_tol=1e-3):
        raise RejectedResultError(
            f"its per_second is {told}, {count} runs in {value['loop_ns']} ns come to {right:.3f} ({examples} a run)"
        )


def _not_negative(where: str, values: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if values[name] is not None and values[name] < 0:
            raise RejectedResultError(f"{where}its {name} is {values[name]}, below 0")


def _check_accuracy(accuracy: Mapping[str, Any]) -> None:
    _not_negative("accuracy: ", accuracy, (*_COUNTS, "max_abs_diff"))
    changed, decisions = accuracy["changed_decisions"] + accuracy["near_ties"], accuracy["decisions"]
    if changed > decisions:
        raise RejectedResultError(f"accuracy: {changed} of {decisions} decisions changed or are near-ties")
    for one in accuracy["changed"]:
        if not _is_decision(one):
            raise RejectedResultError(f"accuracy: {plain(repr(one), 80)} is no changed decision")
    listed = sum(not d["tie"] for d in accuracy["changed"])
    if listed > accuracy["changed_decisions"]:
        raise RejectedResultError(
            f"accuracy: it lists {listed} changed decisions, and counts {accuracy['changed_decisions']}"
        )
    metric = accuracy["metric"]
    if metric is None or metric["name"] not in _RANGES:
        return
    low, high = _RANGES[metric["name"]]
    for name in ("value", "reference"):
        if not low - _ROUNDING <= metric[name] <= high + _ROUNDING:
            raise RejectedResultError(
                f"accuracy: its {metric['name']} has a {name} of {metric[name]}, not from {low:g} to {high:g}"
            )


def _is_decision(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("call"), str)
        and isinstance(value.get("tie"), bool)
        and all(type(value.get(name)) is int for name in ("row", "before", "after"))
    )
