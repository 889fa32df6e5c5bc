"""``nox -s compare``: a loss of accuracy, and a device that leaves its host, whatever the times say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.results import measurements as made
from tests.results.measurements import LATER, NEW, OLD, drawn
from tests.results.test_compare import DECISION, both, compare

HOST = {"identical": False, "calls": 3, "differing": 1, "differing_calls": ["eval-1"], "max_abs_diff": 0.5}
HOST |= {"changed_decisions": 0, "near_ties": 0, "flagged": False, "why": []}
FLAGGED = {**HOST, "flagged": True, "why": ["output 'logits' has an SNR of 3.0 dB against the host"]}
_COSINE = {**made.accuracy(), "decisions": 0, "metric": {"name": "cosine_agreement", "value": 0.99, "reference": 1.0}}


@pytest.mark.parametrize(
    ("old", "new", "options", "code", "says"),
    [
        ({}, {"accuracy": made.accuracy(value=0.1)}, [], 6, "top1_accuracy is lower in B: 0.98 → 0.1 (PyTorch: 0.98)"),
        ({}, {"accuracy": made.accuracy(value=0.979)}, [], 0, "0.9800 → 0.9790"),
        ({}, {"accuracy": made.accuracy(value=0.9789)}, [], 6, "lower in B"),
        ({}, {"accuracy": made.accuracy(value=0.9789)}, ["--max-metric-drop", "0.01"], 0, "0.9800 → 0.9789"),
        ({}, {"accuracy": made.accuracy(value=0.1)}, ["--fail-on", "slower,decisions"], 0, "1 with a lower metric"),
        ({"accuracy": made.accuracy(value=0.1)}, {}, [], 0, "0.1000 → 0.9800"),
        (
            {"accuracy": _COSINE},
            {"accuracy": {**_COSINE, "metric": {**_COSINE["metric"], "value": 0.5}}},
            [],
            6,
            "lower",
        ),
        ({"host": HOST}, {"host": FLAGGED}, [], 6, "it computes otherwise than its host in B: output 'logits'"),
        ({}, {"host": FLAGGED}, [], 6, "1 other than the host"),
        ({"host": FLAGGED}, {"host": FLAGGED}, [], 0, "0.9800"),
        ({"host": HOST}, {"host": None}, [], 0, "note: it was not compared with its host in B"),
        ({}, {"accuracy": None}, [], 0, "note: accuracy is missing in B"),
        ({}, {"accuracy": None}, ["--fail-on", "missing"], 6, "failed: 1 without accuracy in B"),
        ({}, {"accuracy": {**made.accuracy(), "metric": None}}, ["--fail-on", "missing"], 6, "its metric is missing"),
        ({}, {"accuracy": _COSINE}, ["--fail-on", "missing"], 6, "another metric: top1_accuracy → cosine_agreement"),
        ({"accuracy": None}, {}, ["--fail-on", "missing,metric"], 0, "- → 0.9800"),
    ],
)
def test_a_loss_of_accuracy_is_never_quiet(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: dict[str, Any],
    new: dict[str, Any],
    options: list[str],
    code: int,
    says: str,
) -> None:
    results = tmp_path / "results"
    made.write(results, OLD, made.measurement(drawn(1).tolist(), **old))
    made.write(results, NEW, made.measurement(drawn(2).tolist(), started=LATER, **new))
    ended, value, text = compare(results, *options)
    assert ended == code
    assert says in capsys.readouterr().out
    accuracy = value["pairs"][0]["accuracy"]
    wanted = (made.measurement(**new)["accuracy"] or {}).get("metric")
    assert accuracy["b"]["metric"] == wanted
    assert accuracy["b"]["host_flagged"] is (None if new.get("host") is None else new["host"]["flagged"])
    assert ("❌" in text) is (code == 6)
    assert "| metric |" in text


def test_the_worst_repeat_decides_on_accuracy(tmp_path: Path) -> None:
    results = tmp_path / "results"
    both(results)
    worst = made.accuracy([DECISION], value=0.5)
    samples = drawn(12).tolist()
    made.write(results, NEW, made.measurement(samples, repeat=3, started=LATER, accuracy=worst, host=FLAGGED))
    code, value, _ = compare(results)
    assert code == 6
    assert value["failed"] == ["1 more changed decisions", "1 with a lower metric", "1 other than the host"]
