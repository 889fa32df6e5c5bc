"""Metrics, acceptance and budgets: small arrays with known answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.budgets import from_mapping, judge, overall, read_budgets
from build.errors import InputError
from build.manifest import NO_SIGNAL_DB, write
from build.record import CallRecord, ProgramRecord
from build.summary import write_json
from build.verify.acceptance import DEFAULTS, acceptance_for, metric_problem, noise_problems
from build.verify.accuracy import Accuracy
from build.verify.check import _keep_worst
from build.verify.compare import DEFAULT_TOLERANCES, difference
from models.spec import Budget
from targets.contract import Signature
from targets.precisions import PRECISIONS


def scores(*rows: int) -> dict[str, Any]:
    """Class scores of three classes whose highest are ``rows``."""
    return {"y": np.eye(3, dtype=np.float32)[list(rows)]}


def test_top1_accuracy_counts_labels_for_the_artifact_and_for_pytorch() -> None:
    accuracy = Accuracy(metric="top1_accuracy", output="y", labels=("a", "b", "c"))
    for label, (got, want) in enumerate([(0, 0), (2, 1), (0, 1)]):
        accuracy.add(scores(got), scores(want), label)
    metric = accuracy.result()
    assert metric is not None
    assert metric.to_json() == {"name": "top1_accuracy", "value": 0.333333, "reference": 0.666667}
    worst = accuracy.to_json()["per_class"][0]
    assert worst == {"class": 1, "label": "b", "rows": 1, "correct": 0, "reference_correct": 1}


def test_top1_agreement_needs_no_labels() -> None:
    accuracy = Accuracy(metric="top1_agreement", output="y")
    accuracy.add(scores(0, 1, 2, 2), scores(0, 1, 2, 1), None)
    metric = accuracy.result()
    assert metric is not None
    assert (metric.value, metric.reference) == (0.75, 1.0)


def test_cosine_agreement_is_the_mean_over_rows() -> None:
    accuracy = Accuracy(metric="cosine_agreement", output="y")
    want = np.array([[1.0, 0.0], [0.0, 1.0]])
    accuracy.add({"y": np.array([[2.0, 0.0], [1.0, 1.0]])}, {"y": want}, None)
    metric = accuracy.result()
    assert metric is not None
    assert metric.value == pytest.approx((1 + math.sqrt(0.5)) / 2, abs=1e-6)


def test_labelled_calls_without_labels_measure_nothing() -> None:
    accuracy = Accuracy(metric="top1_accuracy", output="y")
    accuracy.add(scores(0), scores(0), None)
    assert accuracy.result() is None


def test_snr_is_over_all_calls() -> None:
    accuracy = Accuracy(metric=None, output=None)
    accuracy.add({"y": np.array([1.0, 0.0])}, {"y": np.array([1.0, 0.1])}, None)
    accuracy.add({"y": np.array([3.0])}, {"y": np.array([3.0])}, None)
    assert accuracy.agreement["y"].snr_db == pytest.approx(10 * math.log10(10.01 / 0.01))


def test_equal_outputs_and_outputs_of_noise_alone_are_told_apart_in_json() -> None:
    accuracy = Accuracy(metric=None, output=None)
    zero, one, nan = np.zeros(2), np.ones(2), np.array([1.0, math.nan])
    accuracy.add({"equal": one, "noise": one, "nan": nan}, {"equal": one, "noise": zero, "nan": one}, None)
    outputs = accuracy.to_json()["outputs"]
    assert {n: (o["snr_db"], o["nonfinite"]) for n, o in outputs.items()} == {
        "equal": (None, 0),
        "noise": (NO_SIGNAL_DB, 0),
        "nan": (None, 1),
    }


def test_a_row_with_a_nan_of_its_own_agrees_with_nothing() -> None:
    accuracy = Accuracy(metric="cosine_agreement", output="y")
    want = np.array([[1.0, 0.0], [0.0, 1.0]])
    accuracy.add({"y": np.array([[math.nan, math.nan], [0.0, 1.0]])}, {"y": want}, None)
    metric = accuracy.result()
    assert metric is not None
    assert metric.value == 0.5


def test_the_worst_call_of_an_output_may_be_noise_alone() -> None:
    worst: dict[str, Any] = {}
    calls = [(np.ones(2), np.zeros(2)), (np.ones(2), np.ones(2)), (np.ones(2), np.full(2, 0.9))]
    for number, (got, want) in enumerate(calls):
        _keep_worst(worst, difference("y", got, want, DEFAULT_TOLERANCES["fp32"]), str(number))
    assert worst["y"]["snr_db"] == NO_SIGNAL_DB
    assert worst["y"]["max_abs"] == 1.0


def test_no_file_of_ours_holds_what_json_does_not_have(tmp_path: Path) -> None:
    value = {"a": [math.inf, (1.5, -math.inf)], "b": {"c": math.nan}, "d": "inf"}
    write(tmp_path, value)
    write_json(tmp_path / "summary.json", [value])
    clean = {"a": [None, [1.5, None]], "b": {"c": None}, "d": "inf"}
    assert json.loads((tmp_path / "manifest.json").read_text()) == clean
    assert json.loads((tmp_path / "summary.json").read_text())["artifacts"] == [clean]


def record(**changes: Any) -> ProgramRecord:
    """A record with nothing in it but what a test sets."""
    values: dict[str, Any] = {
        "name": "m",
        "key": "",
        "sha256": "",
        "signature": Signature(inputs=(), outputs=()),
        "calls": (CallRecord(id="example", kind="example"),),
        "files": {},
        "source": {},
    }
    return ProgramRecord(**{**values, **changes})


def test_every_quantised_precision_has_limits() -> None:
    assert {p.name for p in PRECISIONS.values() if p.quantized} == set(DEFAULTS)


def test_the_users_gate_goes_before_the_models_and_the_defaults() -> None:
    own = record(tolerances={"int8-static": {"max_metric_drop": 0.1}})
    assert acceptance_for(record(), "int8-static", None) == DEFAULTS["int8-static"]
    assert acceptance_for(own, "int8-static", None).max_metric_drop == 0.1
    assert acceptance_for(own, "int8-static", 0.0).max_metric_drop == 0.0
    assert acceptance_for(own, "int8-static", None).min_snr_db == DEFAULTS["int8-static"].min_snr_db


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(InputError, match="atol"):
        acceptance_for(record(tolerances={"int8-static": {"atol": 1.0}}), "int8-static", None)


def test_a_scaled_output_keeps_every_decision_and_is_refused_by_its_noise() -> None:
    accuracy = Accuracy(metric="top1_agreement", output="y")
    accuracy.add({"y": scores(0, 1)["y"] * 3}, scores(0, 1), None)
    limits = DEFAULTS["int8-static"]
    assert metric_problem(accuracy, limits.max_metric_drop) is None
    (line,) = noise_problems(accuracy, limits)
    assert "-6.0 dB" in line


def manifest(**changes: Any) -> dict[str, Any]:
    """An artifact's manifest, as far as budgets read it."""
    return {
        "bytes": 1000,
        "files": [{}],
        "metric": {"name": "top1_accuracy", "value": 0.98, "reference": 0.99},
        "verification": {"decisions": 10, "changed_decisions": 2},
        **changes,
    }


def test_each_limit_is_judged_by_itself() -> None:
    budget = Budget(max_bytes=1000, min_metric=0.985, max_metric_drop=0.01, max_changed=1, p95_ms=5.0)
    judged = {j.limit: j.verdict for j in judge(budget, manifest())}
    assert judged == {
        "max_bytes": "PASS",
        "min_metric": "FAIL",
        "max_metric_drop": "PASS",
        "max_changed": "FAIL",
        "p95_ms": "INCONCLUSIVE",
    }


def test_what_is_not_measured_is_never_a_pass() -> None:
    judged = judge(Budget(p95_ms=5.0), manifest())
    assert overall(judged) == "INCONCLUSIVE"
    assert overall(judge(Budget(p95_ms=5.0), manifest(), {"p95_ms": 4.0})) == "PASS"
    assert overall(judge(Budget(max_metric_drop=0.1), manifest(metric=None))) == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[[budget]]\nmax_byte = 3\n", "max_byte"),
        ("[[budget]]\nmax_bytes = -3\n", "max_bytes"),
        ("[[budget]]\np95_ms = true\n", "p95_ms"),
        ("[[budget]]\np95_ms = nan\n", "p95_ms"),
        ("[[budget]]\np95_ms = inf\n", "p95_ms"),
        ("[[budget]]\nplatform = 3\n", "platform"),
        ("[[budget]]\nplatform = 'androd'\n", "no platform is named 'androd'"),
        ("[budget\n", "TOML"),
        ("x = 1\n", r"no \[\[budget\]\]"),
        ("budget = [1]\n", "budget 1 is 1, not a table"),
        ("[[budget]]\nplatform = 'android'\n", "budget 1 has no limit"),
        ("[[budget]]\nmax_bytes = 3\n[[budgets]]\nmax_bytes = 2\n", "holds 'budgets' beside"),
    ],
)
def test_a_wrong_budget_file_is_one_clear_error(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=word):
        read_budgets(path)


def test_a_models_own_budget_comes_back_from_its_record() -> None:
    from dataclasses import asdict

    budget = Budget(platform="android", max_bytes=5)
    assert from_mapping(asdict(budget), "m") == budget
