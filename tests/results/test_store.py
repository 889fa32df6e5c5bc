"""The store: what was measured is read back, from a folder or a URL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from build.errors import EdgeportError, InputError, StorageError
from device_bench.store import Query, open_results
from device_bench.store.__main__ import main as publish_main
from device_bench.store.keep import keep_manifest, publish
from tests.results import measurements as made
from tests.results.measurements import LATER, NEW, OLD, reasons


def test_what_was_measured_is_read_back(results: Path) -> None:
    store = open_results(results)
    assert store.problems() == []
    assert [(run.name, run.measurements) for run in store.runs()] == [(OLD, 3), (NEW, 5)]
    first = store.measurements()[0]
    written = json.loads((results / first.path).read_text())
    assert store.document(first) == written
    assert store.samples(first) == written["samples_ns"]
    assert first.p95_ms == written["statistics"]["p95_ms"]
    assert first.metric == ("top1_accuracy", 0.98, 0.98)
    assert first.facts.device["soc"] == "Tensor G2"
    assert first.versions["ai-edge-litert"] == "2.3.0"
    failed = store.measurements(Query(ok=False))
    assert [(m.key.device, m.samples, m.p50_ms, store.samples(m)) for m in failed] == [("board", 0, None, [])]
    assert (failed[0].error or {})["message"] == "the connection broke"


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({}, 8),
        ({"devices": ("board",)}, 1),
        ({"devices": ("board", "pixel-7"), "targets": ("litert",)}, 7),
        ({"models": ("another",)}, 0),
        ({"precisions": ("fp32",), "ok": True}, 7),
        ({"runs": (OLD,)}, 3),
        ({"since": "2026-11-02"}, 5),
        ({"since": "2026-11-02T10:00:01Z"}, 0),
        ({"since": "2026-11-02T10:00Z"}, 5),
        ({"since": "2026-11-02T10:00:00Z"}, 5),
        ({"version": "2.3.0"}, 8),
        ({"version": "torch=2.13.0"}, 8),
        ({"version": "torch=2.13"}, 0),
        ({"version": "harness=a1b2c3"}, 8),
        ({"version": "a1b2c3d4"}, 8),
        ({"version": "runtime=a1b2c3d4"}, 0),
        ({"version": "a1b2"}, 0),
    ],
)
def test_queries_narrow(results: Path, query: dict[str, Any], count: int) -> None:
    assert len(open_results(results).measurements(Query(**query))) == count


def test_long_runs_can_be_told_apart(results: Path) -> None:
    made.write_record(results, NEW, started=LATER, sustained=10.0)
    store = open_results(results)
    assert {m.run for m in store.measurements(Query(sustained=True))} == {NEW}
    assert {c.run for c in store.latest(Query(sustained=False))} == {OLD}
    assert len(store.measurements()) == 8
    made.write_record(results, NEW, started=LATER, sustained=None)
    store.refresh()
    assert len(store.measurements(Query(sustained=False))) == 8
    assert store.measurements(Query(sustained=True)) == []


def test_a_version_can_be_the_revision_of_the_sources(results: Path) -> None:
    made.write_record(results, OLD, revision="0123456789abcdef")
    store = open_results(results)
    assert {m.run for m in store.measurements(Query(version="revision=01234567"))} == {OLD}
    assert {m.run for m in store.measurements(Query(version="0123456789abcdef"))} == {OLD}


@pytest.mark.parametrize(
    "since", ["yesterday", "2026-11", "2026-11-02 10:00", "2026-13-45", "2026-02-30", "2026-11-02T24:61Z"]
)
def test_a_date_is_a_date(since: str) -> None:
    with pytest.raises(InputError, match="no date"):
        Query(since=since)


def test_cells_hold_the_repeats_of_one_run(results: Path) -> None:
    store = open_results(results)
    assert [(c.run, c.key.device, c.key.threads, len(c.good)) for c in store.cells()] == [
        (OLD, "pixel-7", 1, 3),
        (NEW, "board", 1, 0),
        (NEW, "pixel-7", 1, 1),
        (NEW, "pixel-7", 2, 3),
    ]
    assert [c.run for c in store.latest(Query(devices=("pixel-7",)))] == [NEW, NEW]
    cell = store.latest(Query(runs=(OLD,)))[0]
    assert cell.p95_ms == max(m.p95_ms or 0 for m in cell.good)
    assert sorted(m.p50_ms or 0 for m in cell.good)[1] == cell.p50_ms


def test_summaries_are_checked_too(results: Path) -> None:
    store = open_results(results)
    assert store.summary(OLD) is None
    (results / OLD / "summary.json").write_text(json.dumps(made.summary(OLD, [made.summary_row("FAIL", ["slow"])])))
    found = store.summary(OLD)
    assert found is not None
    assert found["rows"][0]["verdict"]["reasons"] == ["slow"]
    (results / OLD / "summary.json").write_text(json.dumps(made.summary(OLD, [{"device": 1}])))
    store.refresh()
    assert store.summary(OLD) is None
    assert "schema" in reasons(store)[f"{OLD}/summary.json"]


def test_a_copy_in_the_same_run_does_not_count_twice(results: Path) -> None:
    original = sorted((results / OLD / "pixel-7").iterdir())[0]
    shutil.copy(original, original.with_name("z-copy.json"))
    store = open_results(results)
    assert len(store.measurements(Query(runs=(OLD,)))) == 3
    assert reasons(store) == {
        f"{OLD}/pixel-7/z-copy.json": f"it is the same measurement as {OLD}/pixel-7/{original.name}"
    }
    original.unlink()
    store.refresh()
    assert len(store.measurements(Query(runs=(OLD,)))) == 3
    assert store.problems() == []


def test_a_run_without_its_record_still_counts(results: Path) -> None:
    (results / OLD / "run.json").write_text("{")
    store = open_results(results)
    first = store.runs()[0]
    assert (first.name, first.started, first.record) == (OLD, made.STARTED, None)
    assert list(reasons(store)) == [f"{OLD}/run.json"]
    assert len(store.latest()) == 3


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A URL that fsspec reaches inside this process."""
    import fsspec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield "memory://bucket/results"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_results_at_a_url(results: Path, memory: str, tmp_path: Path) -> None:
    local = open_results(results)
    assert publish(results / OLD, memory) == 4
    assert publish(results / OLD, memory) == 0
    publish(results / NEW, memory)
    store = open_results(memory)
    assert store.measurements() == local.measurements()
    assert store.samples(store.measurements()[0]) == local.samples(local.measurements()[0])
    assert store.problems() == []
    assert len(list((tmp_path / "cache").rglob("*.sqlite"))) == 1
    made.write(results, OLD, made.measurement(made.normal(ms=3)))
    with pytest.raises(StorageError, match="other content"):
        publish(results / OLD, memory)


def test_a_run_is_published_from_the_command_line(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish_main([str(results / OLD), str(tmp_path / "team")]) == 0
    assert capsys.readouterr().out.startswith(f"{OLD}: 4 new files at ")
    assert len(open_results(tmp_path / "team").measurements()) == 3
    assert publish_main([str(results / "nothing"), str(tmp_path / "team")]) == 2
    assert publish_main([str(results / OLD), str(results)]) == 2
    assert publish_main([str(results / OLD)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_that_readers_would_skip_is_not_published(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team = tmp_path / "team"
    folder = results / OLD / "pixel-7"
    good = sorted(folder.iterdir())[0]
    damages: dict[str, Callable[[Path], object]] = {
        "z-bad.json": lambda p: p.write_text("{"),
        "z-link.json": lambda p: p.symlink_to(good),
        "z-copy.json": lambda p: shutil.copy(good, p),
    }
    for name, damage in damages.items():
        damage(folder / name)
        assert publish_main([str(results / OLD), str(team)]) == 2
        (line,) = capsys.readouterr().err.splitlines()[:1]
        assert f"{OLD}/pixel-7/{name}: it is" in line
        assert not team.exists()
        (folder / name).unlink()
    (results / "manifests").mkdir()
    (results / "manifests" / "bad.json").write_text("[]")
    with pytest.raises(InputError, match=r"manifests/bad\.json: it has schema version None"):
        publish(results / OLD, str(team))
    (results / "manifests" / "bad.json").unlink()
    assert publish(results / OLD, str(team)) == 4


@pytest.mark.parametrize("place", ["nothing/here", "memory://nothing/here", "gopher://x"])
def test_a_place_without_results_is_an_error(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EdgeportError):
        open_results(place)


def test_manifests_are_kept_and_found(results: Path, tmp_path: Path) -> None:
    value = made.manifest()
    first = keep_manifest(results, value)
    assert keep_manifest(results, value) == first
    folder = tmp_path / "out" / "digits_cnn" / "executorch" / "fp32"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(made.manifest(target="executorch", key="b" * 64)))
    (folder.with_name("fp16")).mkdir()
    (folder.with_name("fp16") / "manifest.json").write_text('{"schema_version": 1}')
    store = open_results(results, out=tmp_path / "out")
    assert [(m.target, m.sha256) for m in store.manifests()] == [("executorch", "c" * 64), ("litert", "c" * 64)]
    assert [m.target for m in store.manifests(Query(targets=("litert",)))] == ["litert"]
    assert list(reasons(store)) == ["digits_cnn/executorch/fp16/manifest.json"]
