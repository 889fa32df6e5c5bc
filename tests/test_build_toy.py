"""A sixth, toy target in a copied checkout: one module and one row; and what happens when a target misbehaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors.torch import save_file

from tests.conftest import NOX_PYTHON, ROOT, build_in, environment

_TOY = '''
"""A toy target: the program's outputs for its example sizes, as a text of Python."""

from __future__ import annotations

REWRITES = ()


def preflight(program, signature):
    from targets.contract import Finding

    return [Finding(subject="toy", kind="program", verdict="fine")]


def lower(program, request):
    from build.archive import save_program
    from targets.contract import Coverage, Lowered

    save_program(program, request.directory / "model.toy")
    return Lowered(files=("model.toy",), coverage=Coverage(delegated=1, method="toy"))


class _Runner:
    runtime = "toy 1.0"

    def __init__(self, path, signature):
        from build.archive import load_program
        from build.program import call

        self._signature, self._call = signature, call(load_program(path))

    def signature(self):
        return self._signature

    def run(self, inputs):
        import torch

        outputs = self._call([torch.from_numpy(inputs[s.name].copy()) for s in self._signature.inputs])
        return {s.name: t.numpy() for s, t in zip(self._signature.outputs, outputs, strict=True)}


def load(directory, lowered_files, signature):
    return _Runner(directory / lowered_files[0], signature)
'''

_TOY_ROW = """
[toy]
summary = "A toy"
module = "targets.toy"
group = "core"
packages = ["torch"]
platforms = ["toys"]
unbounded = true

[toy.precisions]
fp32 = "available"
"""


def _checkout_with_toy(root: Path, toy: str = _TOY) -> Path:
    """A copy of this checkout with one more module and one more row of facts."""
    for name in ("build", "targets", "models", "tests", "noxfile.py", "pyproject.toml", "constraints.txt"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            root.mkdir(exist_ok=True)
            shutil.copy(source, root / name)
    (root / "targets" / "toy.py").write_text(toy)
    with (root / "targets" / "targets.toml").open("a") as facts:
        facts.write(_TOY_ROW)
    return root


def _programs(folder: Path, *names: str, batch: int = 2) -> Path:
    folder.mkdir()
    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.randn(batch, 4),))
    for name in names:
        torch.export.save(program, folder / f"{name}.pt2")
    return folder


def test_a_sixth_target_is_one_module_and_one_row(tmp_path: Path) -> None:
    root = _checkout_with_toy(tmp_path / "checkout")
    run = build_in(root, tmp_path / "out", session="build-toys")
    assert run.code == 0, run.stdout + run.stderr
    assert [(r["target"], r["status"], r["changed_decisions"]) for r in run.rows] == [("toy", "ok", 0)]
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "-l"], cwd=root, env={**os.environ}, capture_output=True, text=True, check=True
    )
    assert "build-toys" in listed.stdout


def test_a_converter_that_kills_its_process_costs_one_artifact(tmp_path: Path) -> None:
    saves = "    from build.archive import save_program"
    crash = f"    import os\n    if request.model == 'second':\n        os.abort()\n{saves}"
    toy = _TOY.replace(saves, crash, 1)
    root = _checkout_with_toy(tmp_path / "checkout", toy)
    programs = _programs(tmp_path / "programs", "first", "second", "third")
    run = build_in(root, tmp_path / "out", "--program", str(programs), session="build-toys")
    assert {r["model"]: r["status"] for r in run.rows} == {"first": "ok", "second": "failed:lower", "third": "ok"}
    error = next(r["error"] for r in run.rows if r["model"] == "second")
    assert error["code"] == "converter-crashed"
    manifest = json.loads((tmp_path / "out" / "second" / "toy" / "fp32" / "manifest.json").read_text())
    jsonschema.validate(manifest, json.loads((ROOT / "build" / "manifest.schema.json").read_text()))
    assert manifest["status"] == "failed:lower"
    assert "SIGABRT" in error["message"]
    assert run.code == 3


@pytest.mark.parametrize(
    ("change", "with_", "says"),
    [
        ("for s, t in zip(", "for s, t in zip(", ""),
        ("t.numpy() for s", "t.numpy() + 1 for s", "beyond tolerance"),
        ("t.numpy() for s", "t.double().numpy() for s", "dtype float64"),
        ("t.numpy() for s", "t.numpy()[:1] for s", "has shape"),
        ("t.numpy() for s", "t.numpy() * float('nan') for s", "NaN or infinity differs"),
        ("return self._signature", "return type(self._signature)(inputs=(), outputs=())", "inputs are []"),
    ],
)
def test_a_wrong_artifact_never_counts_as_built(tmp_path: Path, change: str, with_: str, says: str) -> None:
    assert change in _TOY
    root = _checkout_with_toy(tmp_path / "checkout", _TOY.replace(change, with_))
    programs = _programs(tmp_path / "programs", "net")
    run = build_in(root, tmp_path / "out", "--program", str(programs), session="build-toys")
    (row,) = run.rows
    if not says:
        assert (run.code, row["status"]) == (0, "ok")
        return
    assert run.code == 4
    assert row["status"] == "failed:verify"
    assert row["error"]["code"] == "verification-failed"
    assert says in row["error"]["message"]
    assert row["files"] == []
    assert not list((tmp_path / "out").rglob("model.toy"))


def test_gates_have_their_own_exit_code(tmp_path: Path) -> None:
    toy = _TOY.replace("Coverage(delegated=1,", "Coverage(delegated=1, fallback={'aten.linear': 3},")
    root = _checkout_with_toy(tmp_path / "checkout", toy)
    programs = _programs(tmp_path / "programs", "net")
    arguments = ("--program", str(programs), "--min-delegated", "50")
    run = build_in(root, tmp_path / "out", *arguments, session="build-toys")
    assert run.code == 6
    assert "25% of the nodes are delegated" in run.rows[0]["error"]["message"]
    assert "aten.linear (3)" in run.rows[0]["error"]["remedy"]


def test_undelegated_is_its_own_status_and_narrowed_is_a_warning(tmp_path: Path) -> None:
    toy = _TOY.replace("Coverage(delegated=1, method=", "Coverage(delegated=0, fallback={'aten.linear': 3}, method=")
    toy = toy.replace('files=("model.toy",),', 'files=("model.toy",), narrowed=("x[0]: 1..64 -> 1..15",),')
    root = _checkout_with_toy(tmp_path / "checkout", toy)
    programs = _programs(tmp_path / "programs", "net")
    run = build_in(root, tmp_path / "out", "--program", str(programs), session="build-toys")
    assert run.code == 0
    assert run.rows[0]["status"] == "ok-undelegated"
    assert any("narrower range" in w for w in run.rows[0]["warnings"])
    strict = build_in(root, tmp_path / "out", "--program", str(programs), "--strict", session="build-toys")
    assert strict.code == 6
    warnings = run.rows[0]["warnings"]
    assert strict.rows[0]["warnings"] == warnings
    assert strict.rows[0]["error"]["message"].startswith(f"--strict: {warnings[0]}")


def test_a_gate_on_a_metric_that_is_not_there_fails(tmp_path: Path) -> None:
    root = _checkout_with_toy(tmp_path / "checkout")
    programs = _programs(tmp_path / "programs", "net")
    arguments = ("--program", str(programs), "--max-metric-drop", "0.5")
    run = build_in(root, tmp_path / "out", *arguments, session="build-toys")
    assert run.code == 6
    (row,) = run.rows
    assert row["status"] == "failed:metric"
    assert "there is no metric" in row["error"]["message"]
    assert (row["files"], row["changed_decisions"]) == ([], None)


def test_two_builds_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    root = _checkout_with_toy(tmp_path / "checkout")
    programs = _programs(tmp_path / "programs", "one", "two")
    out = tmp_path / "out"
    command = [*NOX_PYTHON, "-m", "build", "build-toys", "--out", str(out), "--program", str(programs)]
    environment_ = {**environment(), "PYTHONPATH": str(root)}
    running = [subprocess.Popen(command, cwd=root, env=environment_, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    said = [p.communicate()[0] for p in running]
    assert [p.returncode for p in running] == [0, 0], said
    again = build_in(root, out, "--program", str(programs), session="build-toys")
    assert [r["cached"] for r in again.rows] == [True, True]


def test_other_labels_are_another_artifact(tmp_path: Path) -> None:
    """The file's bytes and the reference data are the same; what the metric says of it is not."""
    root = _checkout_with_toy(tmp_path / "checkout")
    programs = _programs(tmp_path / "programs", "net", batch=1)
    inputs = {f"{i}/input": torch.randn(1, 4) for i in range(3)}
    values, cached = [], []
    for label in (0, 1, 2, 2):
        labels = {f"{i}/label": torch.tensor(label) for i in range(3)}
        save_file(inputs | labels, programs / "net.safetensors")
        run = build_in(root, tmp_path / "out", "--program", str(programs), session="build-toys")
        assert run.code == 0, run.stdout + run.stderr
        values.append(run.rows[0]["metric"])
        cached.append(run.rows[0]["cached"])
    assert cached == [False, False, False, True]
    assert sum(v["value"] for v in values[:3]) == pytest.approx(1.0, abs=1e-5)  # figures have six digits
    assert values[3] == values[2]


def test_a_full_disk_is_a_clear_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    root = _checkout_with_toy(tmp_path / "checkout")
    programs = _programs(tmp_path / "programs", "net")
    out = tmp_path / "out"
    first = build_in(root, out, "--program", str(programs), session="build-toys")
    assert first.code == 0
    before = {p: p.read_bytes() for p in (out / "net").rglob("*") if p.is_file()}
    full = _TOY.replace(
        "    from build.archive import save_program", "    raise OSError(28, 'No space left on device')", 1
    )
    (root / "targets" / "toy.py").write_text(full)
    second = build_in(root, out, "--program", str(programs), session="build-toys")
    assert second.code == 7
    assert "No space left on device" in second.rows[0]["error"]["message"]
    assert {p: p.read_bytes() for p in (out / "net").rglob("*") if p.is_file()} == before
