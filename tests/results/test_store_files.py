"""Files of a results folder are checked before they are believed."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build.errors import RejectedResultError
from device_bench import measurement
from device_bench.harness_result import schema_problem
from device_bench.store import check, open_results, plain, quick
from tests.results import measurements as made
from tests.results.measurements import OLD, reasons

GOOD = made.measurement()


def _with(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def _inside(member: str, **changes: Any) -> bytes:
    return _with(**{member: {**GOOD[member], **changes}})


HOST = {"identical": True, "calls": 3, "differing": 0, "differing_calls": [], "max_abs_diff": 0.0}
HOST |= {"changed_decisions": 0, "near_ties": 0, "flagged": False, "why": []}
DECISION = {"call": "eval-3", "row": 0, "before": 3, "after": 5, "margin": 1.0, "tie": False}

BAD: list[tuple[bytes, str]] = [
    (b"", "not whole JSON"),
    (b"{", "not whole JSON"),
    (json.dumps(GOOD).encode()[:-40], "not whole JSON"),
    (b"\xff\xfe\x00", "not text"),
    (b"[1, 2]", "schema version None"),
    (b'{"schema_version": true}', "schema version True"),
    (b'{"schema_version": 1}', "no end marker"),
    (b"[" * 100_000, "nested too deeply|not whole JSON"),
    (_with(end="something"), "no end marker"),
    (_with(schema_version=9), "schema version 9"),
    (_with(load_ms=float("nan")), "not a number"),
    (_with().replace(b'"load_ms": 3.5', b'"load_ms": 1e999'), "not finite"),
    (_with().replace(b'"load_ms": 3.5', b'"load_ms": 1' + b"0" * 30), "more than 64 bits"),
    (_with().replace(b'"load_ms": 3.5', b'"load_ms": 1' + b"0" * 5000), "not whole JSON"),
    (_with(clock="\ud800"), "half a character"),
    (_with(extra=1), "does not keep to its schema"),
    (_with(started="yesterday"), "not a time"),
    (_with(started="\x1b[2J"), r"\\x1b"),
    (_with(samples_ns=[1, -1]), "whole numbers"),
    (_with(samples_ns=[1, 1.5]), "whole numbers"),
    (_with(samples_ns=[1, 2**70]), "whole numbers"),
    (_with(samples_ns=[True]), "whole numbers"),
    (_with(samples_ns=[]), "schema"),
    (_with(samples_ns=GOOD["samples_ns"][:-1]), "its samples come to 199"),
    (_with(statistics={**GOOD["statistics"], "p50_ms": 0.1}), "p50_ms is 0.1, its samples come to"),
    (_with(details={"a": {}}), "schema"),
    (_with(started="2026-99-99T99:99:99Z"), "not a time"),
    (_with(finished="2026-02-30T10:00:00Z"), "not a time"),
    (_with(started="9999-01-01T00:00:00Z"), "not a time"),
    (_with(started="٢٠٢٦-11-01T10:00:00Z"), "not a time"),
    (_inside("statistics", spread=0.5), "its spread is 0.5"),
    (_inside("statistics", drift=-0.5), "its drift is -0.5"),
    (_inside("statistics", per_second=0), "its per_second is 0"),
    (_inside("statistics", per_second=150.0), "its per_second is 150.0"),
    (_inside("statistics", per_second=1e300), "its per_second is 1e\\+300"),
    (_inside("measurement", batch=2), "2 a run"),
    (_with(loop_ns=1), "schema|per_second"),
    (_inside("memory", peak_mb=-7), "peak_mb is -7"),
    (_with(load_ms=-1), "load_ms is -1"),
    (_inside("artifact", bytes=-1), "bytes is -1"),
    (_inside("measurement", threads=0), "threads is 0"),
    (_inside("measurement", device="../x"), "its device is '../x', its folder is 'pixel-7'"),
    (_inside("accuracy", decisions=0, changed_decisions=-5), "changed_decisions is -5"),
    (_inside("accuracy", decisions=3, changed_decisions=4), "4 of 3 decisions"),
    (_inside("accuracy", changed=[1]), "1 is no changed decision"),
    (_inside("accuracy", changed=[DECISION]), "lists 1 changed decisions, and counts 0"),
    (_inside("accuracy", metric={"name": "top1_accuracy", "value": 17.0, "reference": 1.0}), "not from 0 to 1"),
    (_inside("accuracy", metric={"name": "cosine_agreement", "value": -0.5, "reference": 1.5}), "not from -1 to 1"),
    (_with(host={**HOST, "differing": -1}), "host: its differing is -1"),
]


def test_what_can_be_is_taken() -> None:
    """Figures at the edges of what is possible."""
    cosine = {"name": "cosine_agreement", "value": -1.0, "reference": 1.0}
    several = {**GOOD["statistics"], "per_second": round(8 * 200 * 1e9 / GOOD["loop_ns"], 3)}
    for content in (
        _inside("accuracy", metric=cosine),
        _inside("memory", peak_mb=None),
        _with(host=HOST, accuracy=None),
        _with(statistics=several),  # a program's own batch of 8, which nobody chose
        json.dumps(made.measurement(batch=4)).encode(),
        json.dumps(made.measurement([0, 0, 0])).encode(),
    ):
        assert check.measurement(content, folder="pixel-7")["status"] == "ok"


@pytest.mark.parametrize(("content", "reason"), BAD, ids=range(len(BAD)))
def test_what_is_no_measurement_is_skipped_and_named(results: Path, content: bytes, reason: str) -> None:
    (results / OLD / "pixel-7" / "bad.json").write_bytes(content)
    store = open_results(results)
    (found,) = store.problems()
    assert found.path == f"{OLD}/pixel-7/bad.json"
    with pytest.raises(RejectedResultError, match=reason):
        check.measurement(content, folder="pixel-7")
    assert found.reason.isprintable()
    assert len(store.measurements()) == 8


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_no_bytes_make_a_reader_fail_otherwise(content: bytes) -> None:
    for read in (check.measurement, check.run, check.summary, check.manifest):
        with pytest.raises(RejectedResultError):
            read(content)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_change_of_a_measurement_makes_the_reader_fail_otherwise(data: st.DataObject) -> None:
    value = json.loads(json.dumps(made.measurement([1_000_000] * 60)))
    place = value
    while isinstance(place, dict) and place:
        name = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[name], dict) and place[name] and data.draw(st.booleans()):
            place = place[name]
            continue
        place[name] = data.draw(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([]) | st.just({})
        )
        break
    with contextlib.suppress(RejectedResultError):
        assert check.measurement(json.dumps(value).encode()) == value


def test_what_is_no_file_of_the_lab_is_named(results: Path, tmp_path: Path) -> None:
    (results / "notes.txt").write_text("mine")
    (results / "photos").mkdir()
    (results / OLD / "pixel-7" / "deeper").mkdir()
    (tmp_path / "secret.json").write_bytes(_with())
    (results / OLD / "pixel-7" / "link.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(results / OLD / "pixel-7" / "pipe.json")
    (results / OLD / "pixel-7" / "folder.json").mkdir()
    with (results / OLD / "pixel-7" / "large.json").open("wb") as stream:
        stream.truncate(64 << 20)
    os.close(os.open(os.fsencode(results / OLD / "pixel-7") + b"/\xff\x1b.json", os.O_CREAT))
    (results / OLD / "pixel-7" / ".part.json").write_text("{")  # what a killed writer leaves behind
    store = open_results(results)
    found = reasons(store)
    assert len(store.measurements()) == 8
    assert {path.rpartition("/")[2]: reason for path, reason in found.items()} == {
        "notes.txt": "it is no file of the lab",
        "photos": "it is no folder of the lab",
        "deeper": "it is no folder of the lab",
        "folder.json": "it is no folder of the lab",
        "link.json": "it is a symbolic link, which is not followed",
        "pipe.json": "it is not a regular file",
        "large.json": "it has 33554433 bytes, more than 33554432",
        "\\udcff\\x1b.json": "its name is not text",
    }


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_quick_check_never_says_yes_where_the_schema_says_no(data: st.DataObject) -> None:
    value = json.loads(json.dumps(made.measurement([1_000_000] * 3)))
    for _ in range(data.draw(st.integers(0, 2))):
        place: Any = value
        while True:
            names = list(place) if isinstance(place, dict) else range(len(place))
            name = data.draw(st.sampled_from(sorted(names)))
            if isinstance(place[name], (dict, list)) and place[name] and data.draw(st.booleans()):
                place = place[name]
                continue
            other = st.sampled_from([None, True, 0, -1, 1.5, "", "ok", [], {}, [1.0], {"a": 1}])
            if isinstance(place, dict) and data.draw(st.booleans()):
                del place[name]
            else:
                place[name] = data.draw(other)
            break
        if not value:
            break
    if check._quick(measurement.SCHEMA)(value):
        assert schema_problem(value, measurement.SCHEMA) is None


def test_the_quick_check_knows_what_the_lab_writes() -> None:
    assert check._quick(measurement.SCHEMA)(made.measurement())
    assert check._quick(measurement.SCHEMA)(made.failed())
    assert check._quick(check.SUMMARY_SCHEMA)(made.summary("run-1", [made.summary_row()]))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, True),
        ({"const": 1}, True),
        ({"enum": [0, None]}, False),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3),
        ({"format": "email"}, "nobody"),
        ({"additionalProperties": False}, {"a": 1}),
        ({"required": ["a"]}, {}),
        ({"if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}}, {"a": "x"}),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": "x"}),
        (False, 1),
    ],
)
def test_the_quick_check_leaves_what_it_does_not_know(schema: Any, value: Any) -> None:
    assert not quick.compiled(schema)(value)


@given(st.text(max_size=300))
def test_plain_text_cannot_act(text: str) -> None:
    shown = plain(text)
    assert len(shown) <= 10 * 200
    assert all(c.isprintable() for c in shown)


def test_plain_text_shows_what_is_hidden() -> None:
    assert plain("a\x1b[31m\n\u202eb") == "a\\x1b[31m\\x0a\\u202eb"
    assert plain("x" * 300, 10) == "xxxxxxxxx…"
