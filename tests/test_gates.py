"""Gates that the user asks for, and options that a session would not use: nothing given is passed over."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from build import manifest, summary
from build.attempt import Attempt
from build.errors import GateError, InputError
from build.options import SESSIONS, parse
from build.plan import Row, refusal
from build.sources import Source
from build.worker import _gates
from targets.contract import Coverage, Lowered
from targets.registry import all_targets
from tests.test_accuracy import manifest as judged_manifest
from tests.test_accuracy import record

NO_GATES = {"strict": False, "min_delegated": None, "max_metric_drop": None}


def gates(*warnings: str, metric: object = None, **asked: Any) -> None:
    """The gates of a job, for an artifact with these warnings."""
    lowered = Lowered(files=("m",), coverage=Coverage(delegated=1, method="all"))
    report = SimpleNamespace(accuracy=SimpleNamespace(result=lambda: metric))
    _gates({**NO_GATES, **asked}, cast(Attempt, SimpleNamespace(lowered=lowered, report=report)), warnings)


def test_strict_fails_on_every_warning_of_the_manifest() -> None:
    gates(strict=True)
    gates("stayed in floating point: aten.conv2d.default (1)")
    with pytest.raises(GateError, match=r"^--strict: made-up inputs only \(and 1 more in the manifest\)"):
        gates("made-up inputs only", "few examples", strict=True)


def test_a_gate_on_the_metric_is_not_met_where_there_is_none() -> None:
    gates(metric=object(), max_metric_drop=0.0)
    with pytest.raises(GateError, match="there is no metric") as caught:
        gates(max_metric_drop=0.5)
    assert "CALL/label" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("session", "arguments", "says"),
    [
        ("check", ["--max-metric-drop", "0.0"], "build"),
        ("check", ["--keep-float", "a"], "build, blame"),
        ("check", ["--strict"], "build"),
        ("check", ["--min-delegated", "3"], "build"),
        ("build", ["--budgets", __file__], "check, bundle"),
        ("build-web", ["--choose", "fastest"], "check, bundle"),
        ("preflight", ["--precisions", "fp16"], "build, check, blame, bundle"),
        ("preflight", ["--calibration", __file__], "build, check, blame, bundle"),
        ("preflight", ["--dry-run"], "build, blame"),
        ("blame", ["--max-metric-drop", "0.5"], "build"),
        ("bundle-web", ["--dry-run"], "build, blame"),
    ],
)
def test_an_option_that_a_session_would_not_use_is_refused(session: str, arguments: list[str], says: str) -> None:
    with pytest.raises(InputError, match=f"{arguments[0]} has no meaning in session {session}") as caught:
        parse(session, ("ort_web",), arguments)
    assert caught.value.remedy == f"Leave it out, or give it to {says}."


def test_sessions_of_one_command_share_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SESSIONS, "build-web check")
    assert parse("build-web", ("ort_web",), ["--budgets", __file__]).budgets == Path(__file__)
    assert parse("check", ("ort_web",), ["--strict"]).strict
    monkeypatch.setenv(SESSIONS, "build-web preflight")
    with pytest.raises(InputError, match="--budgets has no meaning in session build-web"):
        parse("build-web", ("ort_web",), ["--budgets", __file__])


def test_options_that_name_a_source_or_say_how_to_work_suit_every_session() -> None:
    shared = ["--jobs", "1", "--trust", "--debug"]
    for session in ("build", "check", "blame", "preflight", "bundle"):
        assert parse(session, ("ort_web",), shared).jobs == 1
    assert parse("check", ("ort_web",), ["--calibration", __file__]).calibration == Path(__file__)


def test_calibration_needs_a_calibrated_precision() -> None:
    with pytest.raises(InputError, match="fp32, the default, is not calibrated") as caught:
        parse("build-web", ("ort_web",), ["--calibration", __file__])
    assert "--precisions int8-static" in str(caught.value.remedy)
    options = parse("build", ("ort_web",), ["--calibration", __file__, "--precisions", "int8-static"])
    source = Source(name="m", key=None, job={})
    row = Row(source=source, target=all_targets()["ort_web"], precision="int8-static", unavailable=None)
    refused = refusal(row, record(quantized=True), options)
    assert refused is not None
    assert "--calibration has no meaning" in refused.message


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_figures_that_are_no_number_are_null(tmp_path: Path) -> None:
    value = {"outputs": {"y": {"max_rel": math.inf, "cosine": math.nan, "snr_db": [-math.inf, 1.0]}}}
    manifest.write(tmp_path, value)
    found = json.loads((tmp_path / manifest.MANIFEST).read_text(), parse_constant=refuse)
    assert found == {"outputs": {"y": {"max_rel": None, "cosine": None, "snr_db": [None, 1.0]}}}
    summary.write_json(tmp_path / "s.json", [{"max_abs_diff": math.inf}])
    (row,) = json.loads((tmp_path / "s.json").read_text(), parse_constant=refuse)["artifacts"]
    assert row == {"max_abs_diff": None}


@pytest.mark.parametrize(("decisions", "changed"), [(10, 0), (0, None)])
def test_a_program_that_decides_nothing_has_no_count_of_changed_decisions(decisions: int, changed: int | None) -> None:
    named = {"model": "m", "target": "t", "precision": "fp32", "status": "ok", "files": []}
    value = judged_manifest(verification={"decisions": decisions, "changed_decisions": 0}, **named)
    row = manifest.summary_row(value, cached=False, seconds=0.0)
    assert row["changed_decisions"] == changed
    cells = summary.table([{**row, "max_abs_diff": 0.0}]).splitlines()[2].split()
    assert cells[-3] == ("-" if changed is None else "0")
