"""Mutated programs given to a whole build: each ends as an artifact, or as one clear error that leaves nothing."""

from __future__ import annotations

import os

import pytest

from tests import fuzz
from tests.archive_support import save_all
from tests.conftest import ROOT, Run, build_in

TARGET = "ort_web"


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    """One build of a folder of mutants; ``EDGEPORT_FUZZ`` says how many."""
    folder = tmp_path_factory.mktemp("fuzzed")
    count = int(os.environ.get("EDGEPORT_FUZZ", "30"))
    programs = save_all(tmp_path_factory.mktemp("programs"))
    sources = [path.read_bytes() for path, _ in programs.values()]
    mutants = list(fuzz.mutants(sources, fuzz.PROGRAM_MUTATORS, count, seed=21))
    (folder / "in").mkdir()
    for i, mutant in enumerate(mutants):
        (folder / "in" / f"m{i:04d}_{mutant.name}.pt2").write_bytes(mutant.data)
    return build_in(ROOT, folder / "out", "--program", str(folder / "in"), "--targets", TARGET), count


def test_every_mutant_is_an_artifact_or_a_clear_error(fuzzed: tuple[Run, int]) -> None:
    run, count = fuzzed
    assert len(run.rows) == count
    assert "Traceback" not in run.stderr
    assert run.code != 0
    for row in run.rows:
        if row["status"] in ("ok", "ok-undelegated"):
            continue
        error = row["error"]
        assert error["code"] not in ("internal", "converter-crash"), row
        assert error["message"], row
        assert "\n" not in error["message"], row
    assert sum(r["error"] is not None for r in run.rows) > count // 2


def test_a_refused_mutant_leaves_nothing_in_the_output_folder(fuzzed: tuple[Run, int]) -> None:
    run, _ = fuzzed
    refused = [r["model"] for r in run.rows if r["status"] == "failed:capture"]
    assert refused
    for model in refused:
        assert not (run.out / model).exists(), model
    assert not [p for p in (run.out / ".staging").rglob("*") if p.is_file()]
