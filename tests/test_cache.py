"""Keys, locks and atomic writes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from build import cache
from build.errors import StorageError
from tests.conftest import ROOT, environment


def _folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_key_depends_on_values_not_on_order() -> None:
    assert cache.key_of(a=1, b="x") == cache.key_of(b="x", a=1)
    assert cache.key_of(a=1, b="x") != cache.key_of(a=1, b="y")


def test_code_hash_follows_every_file_below_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "ROOT", tmp_path)
    _folder(tmp_path / "pkg" / "sub", **{"a.py": "1"})
    before = cache.code_hash(["pkg"])
    (tmp_path / "pkg" / "sub" / "a.py").write_text("2")
    assert cache.code_hash(["pkg"]) != before


@pytest.mark.parametrize("can_exchange", [True, False])
def test_put_folder_replaces_the_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(cache, "_exchange", lambda a, b: False)
    place = tmp_path / "place"
    cache.put_folder(_folder(tmp_path / "one", a="1", b="1"), place)
    cache.put_folder(_folder(tmp_path / "two", a="2"), place)
    assert {p.name: p.read_text() for p in place.iterdir()} == {"a": "2"}


def test_staging_is_removed_and_sweep_takes_only_abandoned_ones(tmp_path: Path) -> None:
    with cache.staging(tmp_path) as mine:
        (mine / "f").write_text("x")
        abandoned = _folder(tmp_path / ".staging" / "dead", f="x")
        abandoned.with_suffix(".lock").touch()
        cache.sweep(tmp_path)
        assert mine.is_dir()
        assert not abandoned.exists()
    assert not (tmp_path / ".staging").exists()


def test_write_atomic_keeps_the_old_file_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.json"
    cache.write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        cache.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


_SWAP = """
import shutil, sys, pathlib
from build import cache
root = pathlib.Path(sys.argv[1])
for n in range(10**9):
    with cache.lock(root, "x"), cache.staging(root) as new:
        for name in ("a", "b", "c"):
            (new / name).write_text(str(n))
        cache.put_folder(new, root / "place")
"""


def test_a_killed_writer_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    for round_ in range(8):
        process = subprocess.Popen([sys.executable, "-c", _SWAP, str(tmp_path)], cwd=ROOT, env=environment())
        place = tmp_path / "place"
        deadline = time.monotonic() + 60
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.02 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert sorted(p.name for p in place.iterdir()) == ["a", "b", "c"]
        assert len({p.read_text() for p in place.iterdir()}) == 1
    cache.sweep(tmp_path)
    assert not (tmp_path / ".staging").exists()


_HOLD = """
import sys, pathlib, time
from build import cache
with cache.lock(pathlib.Path(sys.argv[1]), "x"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.wait()
    with cache.lock(tmp_path, "x"):
        pass


def test_a_file_in_place_of_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        cache.write_atomic(tmp_path / "file" / "below.json", "{}")


def test_tidying_up_takes_only_what_the_build_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = cache.absent(out)
    _folder(out / "logs", **{"capture.log": "x"})
    _folder(out / ".locks", x="")
    cache.clear_if_empty(out, made)
    assert not out.exists()

    out.mkdir()
    made = cache.absent(out)
    _folder(out / "logs", **{"capture.log": "x"})
    cache.clear_if_empty(out, made)
    assert list(out.iterdir()) == []  # the empty folder was the user's

    _folder(out / "logs", **{"mine.txt": "x"})
    cache.clear_if_empty(out, cache.absent(out))
    assert (out / "logs" / "mine.txt").exists()


def test_a_lock_whose_file_was_removed_while_waiting_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removed: list[str] = []

    def flock_once_removed(stream: IO[str], how: int) -> None:
        flock(stream, how)
        if not removed:
            removed.append(stream.name)
            shutil.rmtree(tmp_path / ".locks")

    monkeypatch.setattr(fcntl, "flock", flock_once_removed)
    with cache.lock(tmp_path, "x"):
        assert [str(p) for p in (tmp_path / ".locks").iterdir()] == removed


@pytest.mark.parametrize("make", [lambda out: cache.lock(out, "x"), cache.staging])
def test_no_room_for_locks_and_staging_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], AbstractContextManager[object]]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match="No space left on device"), make(tmp_path):
        pass
