"""``nox -s check``: what may ship is what today's sources give, judged by today's data. Artifacts are made up here."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from build import check, envs, manifest
from build.capture.run import capture
from build.options import parse
from build.plan import code_of, judged_as, program_folder
from build.record import RECORD, ProgramRecord, read_record
from build.sources import sources
from targets.registry import all_targets

BUDGET = '[[budget]]\nplatform = "android"\nmax_bytes = 100\nmin_metric = 0.5\n'


class Place:
    """A program with labelled calls, its budgets, and where it is built."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.budgets = folder / "budgets.toml"
        self.budgets.write_text(BUDGET)
        self.train(0)
        self.evaluate(seed=0, label=1)

    def train(self, seed: int) -> None:
        """Save a program with other weights."""
        torch.manual_seed(seed)
        torch.export.save(torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.randn(1, 4),)), self.program)

    def evaluate(self, *, seed: int, label: int) -> None:
        """Put calls beside it."""
        generator = torch.Generator().manual_seed(seed)
        calls = {f"{i}/input": torch.randn(1, 4, generator=generator) for i in range(3)}
        save_file(calls | {f"{i}/label": torch.tensor(label) for i in range(3)}, self.folder / "net.safetensors")

    @property
    def program(self) -> Path:
        return self.folder / "net.pt2"

    def capture(self) -> ProgramRecord:
        """What a build does first."""
        options = parse("check", tuple(all_targets()), ["--program", str(self.program), "--out", str(self.out)])
        environment = envs.ensure("models")
        (source,) = sources(options, environment.packages)
        folder = program_folder(self.out, source)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return capture(source.job, folder, lambda stage: None)

    def build(self, *targets: str) -> None:
        """Capture, and put artifacts in their places that did well."""
        self.capture()
        record = read_record(self.out / "net" / "program")
        for target in targets:
            facts = all_targets()[target]
            folder = self.out / "net" / target / "fp32"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.bin").write_bytes(b"model")
            job = {
                "target": target,
                "precision": "fp32",
                "key": "0" * 64,
                "toolchain": {},
                "code": code_of(facts),
                "judged_as": judged_as(record),
            }
            metric = {"name": "top1_accuracy", "value": 0.9, "reference": 0.9}
            files = manifest.describe_files(folder)
            done = {"status": "ok", "error": None, "main": "model.bin", "files": files, "bytes": 5, "metric": metric}
            manifest.write(folder, manifest.begin(record, job) | done)

    def check(self, *arguments: str) -> tuple[int, Any]:
        """Exit code, and the android section."""
        file = self.folder / "check.json"
        file.unlink(missing_ok=True)
        where = ["--program", str(self.program), "--out", str(self.out), "--json", str(file)]
        code = check.session([*where, "--budgets", str(self.budgets), *arguments])
        found = json.loads(file.read_text())["sections"] if file.exists() else []
        return code, found[0] if found else None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("EDGEPORT_PYTHON", sys.executable)
    return Place(tmp_path)


def verdicts(section: Any) -> dict[str, str]:
    return {c["target"]: c["verdict"] for c in section["candidates"]}


def test_what_was_built_from_the_program_ships(place: Place) -> None:
    place.build("litert", "executorch")
    code, section = place.check()
    assert (code, verdicts(section)) == (0, {"litert": "PASS", "executorch": "PASS"})


def test_a_program_that_was_trained_again_does_not_ship_what_was_built_before(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.build("litert", "executorch")
    place.train(1)
    code, section = place.check()
    assert (code, section["ship"]) == (6, None)
    assert verdicts(section) == {"litert": "INCONCLUSIVE", "executorch": "INCONCLUSIVE"}
    lines = capsys.readouterr().out.splitlines()
    (said,) = [line for line in lines if line.startswith("executorch fp32, litert fp32: stale: the program is not")]
    assert said.endswith("build again")


@pytest.mark.parametrize(
    ("seed", "label", "says"), [(0, 2, "other labels"), (1, 1, "other reference data")], ids=["labels", "inputs"]
)
def test_figures_of_an_older_evaluation_set_are_not_mixed_in(place: Place, seed: int, label: int, says: str) -> None:
    place.build("litert", "executorch")
    place.evaluate(seed=seed, label=label)
    place.build("executorch")
    code, section = place.check()
    assert code == 0
    assert verdicts(section) == {"litert": "INCONCLUSIVE", "executorch": "PASS"}
    (why,) = [c["why"] for c in section["candidates"] if c["target"] == "litert"]
    assert why.startswith("stale: ")
    assert says in why


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"judged_by": None}, "other reference data"),
        ({"calibration": {"sha256": "e" * 64, "calls": 1, "source": "old"}}, "calibrated with other calls"),
    ],
)
def test_an_artifact_of_other_data_is_stale(place: Place, changes: dict[str, Any], says: str) -> None:
    place.build("litert")
    folder = place.out / "net" / "litert" / "fp32"
    value = manifest.read(folder)
    assert value is not None
    manifest.write(folder, {**value, **changes})
    code, section = place.check()
    assert code == 6
    assert says in section["candidates"][0]["why"]


def test_a_stale_program_may_state_budgets_by_now(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.build("litert")
    where = ["--program", str(place.program), "--out", str(place.out)]
    assert check.session(where) == 2
    assert "no budget applies" in capsys.readouterr().err
    place.train(1)
    assert check.session(where) == 2
    assert "it is not what was captured" in capsys.readouterr().err


def test_a_budget_of_a_program_that_changed_is_not_kept(place: Place) -> None:
    """A spec's budgets are a part of its capture: with other ones the program is captured again."""
    place.build("litert")
    path = place.out / "net" / "program" / RECORD
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "key": "d" * 64, "budgets": [{"max_bytes": 1000}]}))
    file = place.folder / "own.json"
    where = ["--program", str(place.program), "--out", str(place.out), "--json", str(file)]
    assert check.session([*where, "--targets", "litert"]) == 6
    sections = json.loads(file.read_text())["sections"]
    assert {c["verdict"] for s in sections for c in s["candidates"]} == {"INCONCLUSIVE"}


def test_a_cell_that_was_named_is_never_left_out(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.build("litert")
    asked = ["--targets", "litert", "--precisions", "fp32,int8-static"]
    code, section = place.check(*asked)
    assert code == 0
    cells = {c["precision"]: (c["status"], c["verdict"]) for c in section["candidates"]}
    assert cells == {"fp32": ("ok", "PASS"), "int8-static": ("not built", "INCONCLUSIVE")}
    assert "litert int8-static: not built" in capsys.readouterr().out
    assert len(place.check("--targets", "litert")[1]["candidates"]) == 1, "by default, what is there"


def test_nothing_but_named_cells_that_are_not_built_ships_nothing(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.build()
    assert place.check("--precisions", "fp32")[0] == 6
    assert "ship: nothing is built for this platform" in capsys.readouterr().out


def test_a_cell_that_a_target_does_not_have_says_so(place: Place) -> None:
    place.build()
    place.budgets.write_text(BUDGET.replace("android", "apple"))
    code, section = place.check("--precisions", "int8-dynamic")
    (cell,) = section["candidates"]
    assert (code, cell["status"], cell["verdict"]) == (6, "unavailable", "INCONCLUSIVE")
    assert cell["why"] == f"unavailable: {all_targets()['coreml'].unavailable('int8-dynamic')}"


def test_a_manifest_that_cannot_be_read_does_not_hide_its_cell(place: Place) -> None:
    place.build("litert")
    (place.out / "net" / "litert" / "fp32" / manifest.MANIFEST).write_text("{")
    code, section = place.check("--targets", "litert")
    assert (code, [c["status"] for c in section["candidates"]]) == (6, ["not built"])


def test_a_budget_that_is_not_judged_here_is_said(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.build("litert")
    place.budgets.write_text(f'{BUDGET}[[budget]]\nplatform = "local"\np95_ms = 0.001\n')
    assert place.check()[0] == 0
    assert "a budget for 'local' is not judged here" in capsys.readouterr().err


def test_a_misspelt_target_is_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.build("litert")
    assert place.check("--targets", "litert,execturoch") == (2, None)
    assert "Did you mean 'executorch'" in capsys.readouterr().err
