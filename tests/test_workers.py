"""The worker processes: what a job may do to its process, what one does while it waits."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from build.envs import Environment
from build.errors import StorageError
from build.protocol import Worker
from build.workers import Workers
from tests.conftest import ROOT

_LEAVES = """
import sys
from build.protocol import serve
serve(lambda job, emit: sys.exit(0) if job["label"] == "leaves" else {"label": job["label"]})
"""


def test_a_job_that_leaves_the_process_costs_one_job(tmp_path: Path) -> None:
    found = Worker([sys.executable, "-c", _LEAVES], log=tmp_path / "log", env={"PYTHONPATH": str(ROOT)}, name="toy")
    try:
        answers = [found.submit({"label": label}, lambda stage: None) for label in ("a", "leaves", "b")]
    finally:
        found.close()
    assert answers[0] == {"result": {"label": "a"}}
    assert "error" in answers[1]
    assert answers[2] == {"result": {"label": "b"}}


def test_a_log_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    for command, log in (([sys.executable], tmp_path / "logs" / "x.log"), (["/nowhere"], tmp_path / "log")):
        with pytest.raises(StorageError, match="cannot start the toy process"):
            Worker(command, log=log, env={}, name="toy").start()
    assert not before or len(os.listdir("/proc/self/fd")) == before


_WAITS = """
import sys
from build.protocol import serve
serve(lambda job, emit: {"imported": "colorsys" in sys.modules}, ["no_such_module", "colorsys", "told"])
"""


def _waiting(tmp_path: Path) -> tuple[Workers, Path]:
    """Workers, one of whose processes imports a module that leaves a file behind."""
    (tmp_path / "toy.py").write_text(_WAITS)
    (tmp_path / "told.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    return Workers(tmp_path / "out"), tmp_path / "imported"


def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Environment:
    monkeypatch.setattr("build.workers.ROOT", f"{ROOT}{os.pathsep}{tmp_path}")
    return Environment(python=Path(sys.executable), packages={})


def _wait_for(file: Path) -> None:
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, "the prepared process did nothing"
        time.sleep(0.02)


def test_a_prepared_process_imports_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, imported = _waiting(tmp_path)
    environment = _environment(monkeypatch, tmp_path)
    try:
        workers.prepare("toy", environment, "toy")
        _wait_for(imported)
        first = workers.start("toy", environment, "toy")
        assert first.submit({"label": "a"}, lambda stage: None) == {"result": {"imported": True}}
        assert workers.start("toy", environment, "toy") is not first
    finally:
        workers.close()


def test_a_job_that_is_there_does_not_wait_for_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, imported = _waiting(tmp_path)
    try:
        found = workers.start("toy", _environment(monkeypatch, tmp_path), "toy")
        assert found.submit({"label": "a"}, lambda stage: None) == {"result": {"imported": False}}
    finally:
        workers.close()
    assert not imported.exists()


def test_a_prepared_process_without_a_job_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, imported = _waiting(tmp_path)
    told = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    (tmp_path / "told.py").write_text(f"{told}open({str(imported)!r}, 'w').close()\ntime.sleep(3600)")
    workers.prepare("toy", _environment(monkeypatch, tmp_path), "toy")
    _wait_for(imported)
    workers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
