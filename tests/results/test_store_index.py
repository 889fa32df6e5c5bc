"""The index beside the results: filled from new files only, never the truth, made anew when it is broken."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from build.errors import InputError
from device_bench.store import Query, open_results
from device_bench.store.files import FolderFiles
from device_bench.store.index import NAME
from tests.conftest import ROOT, environment
from tests.results import measurements as made
from tests.results.measurements import LATER, NEW, OLD


def test_only_what_is_new_or_changed_is_read_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_results(results).close()
    read: list[str] = []
    real = FolderFiles.read

    def noting(self: FolderFiles, path: str) -> bytes | None:
        read.append(path)
        return real(self, path)

    monkeypatch.setattr(FolderFiles, "read", noting)
    store = open_results(results)
    assert read == []
    changed = made.write(results, NEW, made.measurement(made.normal(ms=50), started=LATER))
    added = made.write(results, NEW, made.measurement(device="another", started=LATER))
    removed = sorted((results / OLD / "pixel-7").iterdir())[0]
    removed.unlink()
    store.refresh()
    assert sorted(read) == sorted(str(p.relative_to(results)) for p in (changed, added))
    assert len(store.measurements()) == 8
    (found,) = store.measurements(Query(runs=(NEW,), devices=("pixel-7",), version="2.3.0"))[:1]
    assert found.p50_ms == pytest.approx(50, rel=0.02)


def test_a_file_that_changes_under_the_reader_is_an_error(results: Path) -> None:
    store = open_results(results)
    first = store.measurements()[0]
    made.write(results, OLD, made.measurement(made.normal(ms=99)))
    with pytest.raises(InputError, match="changed while it was read"):
        store.samples(first)


def test_results_that_cannot_be_written_to_are_indexed_elsewhere(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert len(open_results(results).measurements()) == 8
    assert not (results / NAME).exists()
    assert len(list((tmp_path / "cache").rglob("*.sqlite"))) == 1


def _break_in_the_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(4096, len(content), 512):
        content[at : at + 64] = b"\xa5" * 64
    path.write_bytes(content)


def _of_another(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE measurements (path TEXT)")


def _lie(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON files BEGIN DELETE FROM measurements; END")


def _older(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 0")


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(b"not a database" * 999),
        lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
        _break_in_the_middle,
        _of_another,
        _lie,
        _older,
    ],
    ids=["empty", "garbage", "cut", "overwritten", "foreign", "trigger", "version"],
)
def test_a_broken_index_is_made_anew(results: Path, damage: Any) -> None:
    store = open_results(results)
    expected = store.measurements()
    store.close()
    damage(results / NAME)
    again = open_results(results)
    assert again.measurements() == expected
    assert again.problems() == []


def test_an_index_that_came_with_a_copy_is_not_believed(results: Path, tmp_path: Path) -> None:
    store = open_results(results)
    store.close()
    with sqlite3.connect(results / NAME) as connection:
        connection.execute("UPDATE measurements SET p50_ms = 0.001")
    copy = tmp_path / "copy"
    shutil.copytree(results, copy)
    assert min(m.p50_ms or 99 for m in open_results(copy).measurements(Query(ok=True))) > 9


def test_a_killed_reader_leaves_an_index_that_works(results: Path) -> None:
    for number in range(150):
        made.write(results, OLD, made.measurement(made.normal(60), repeat=number + 10))
    code = "import sys; from device_bench.store import index, open_results; index._BATCH = 5; open_results(sys.argv[1])"
    started = subprocess.Popen([sys.executable, "-c", code, str(results)], cwd=ROOT, env=environment())
    deadline = time.monotonic() + 60
    while started.poll() is None and not _has_rows(results / NAME) and time.monotonic() < deadline:
        time.sleep(0.005)
    started.send_signal(signal.SIGKILL)
    started.wait()
    store = open_results(results)
    assert len(store.measurements()) == 158
    assert store.problems() == []


def _has_rows(path: Path) -> bool:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return bool(connection.execute("SELECT 1 FROM measurements LIMIT 1").fetchall())
    except sqlite3.Error:
        return False


def _count(place: str) -> int:
    store = open_results(place)
    return len(store.measurements()) + 1000 * len(store.problems())


def test_two_processes_index_at_once(results: Path) -> None:
    for number in range(60):
        made.write(results, OLD, made.measurement(made.normal(60), repeat=number + 10))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_count, [str(results)] * 4, chunksize=1) == [68] * 4
    assert len(open_results(results).measurements()) == 68
