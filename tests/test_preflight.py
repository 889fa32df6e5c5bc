"""``nox -s preflight``: the matrix before any conversion, as a person and as a program reads it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import sympy
import torch
from torch.export import Dim

from build.content_hash import content_hash
from build.program import signature_of
from targets.registry import all_targets, load
from targets.xnnpack.ranges import shape_environments
from tests.conftest import NOX_PYTHON, ROOT, environment

_MODULE = """
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + torch.rand_like(x)


def noisy():
    return Net().eval(), (torch.randn(2, 4),)
"""


def preflight(*arguments: str | Path, out: Path) -> subprocess.CompletedProcess[str]:
    """``nox -s preflight``."""
    return subprocess.run(
        [*NOX_PYTHON, "-m", "build.preflight", "--out", out, *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_digits_fit_every_target_and_what_is_rewritten_is_said(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = preflight("--model", "digits_cnn", "--json", found, out=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    head, *_ = [line for line in done.stdout.splitlines() if line.startswith("kind")]
    assert head.split() == ["kind", "subject", *all_targets()]
    assert "image[0]: 1..64" in done.stdout
    assert "[coreml] aten.max_pool2d.default at digits_cnn.py:" in done.stdout
    (program,) = json.loads(found.read_text())["programs"]
    assert program["model"] == "digits_cnn"
    assert {f["verdict"] for rows in program["findings"].values() for f in rows} == {"fine", "rewritten"}


def test_what_no_target_takes_is_refused_with_op_line_and_way_out(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(_MODULE)
    done = preflight("--module", f"{file}:noisy", out=tmp_path / "out")
    assert done.returncode == 3
    notes = [line for line in done.stdout.splitlines() if "refused:" in line]
    assert all("] aten.rand_like.default at net.py:7 in forward: return torch.relu(x)" in note for note in notes)
    assert {t for note in notes for t in note[1 : note.index("]")].split(", ")} == set(all_targets())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--program", "nowhere.pt2"), "no such file"),
        (("--model", "digit_cnn"), "Did you mean 'digits_cnn'"),
        (("--targets", "tflite"), "no target is named 'tflite'"),
    ],
)
def test_bad_input_is_one_line_on_stderr(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = preflight(*arguments, out=tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_program_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"PK\x03\x04 nothing more")
    done = preflight("--program", broken, "--model", "digits_cnn", "--targets", "ort_web", out=tmp_path / "out")
    assert done.returncode == 2
    assert "== digits_cnn" in done.stdout
    assert "error: broken: " in done.stderr
    assert "Traceback" not in done.stderr


class _Writes(torch.nn.Module):
    """A program with what a pre-flight might rewrite in order to look at it: in-place ops, a derived dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        y = x.reshape(x.shape[0] // 4, 4, 3)
        return y.mul_(2).median(1).values + self.count


@pytest.mark.parametrize("name", list(all_targets()))
def test_a_preflight_changes_nothing_of_the_program_that_is_lowered_next(name: str) -> None:
    example = (torch.ones(20, 3),)
    program = torch.export.export(_Writes(), example, dynamic_shapes={"x": {0: 4 * Dim("fours", min=1, max=16)}})
    (environment,) = shape_environments(program.graph_module)

    def state() -> object:
        ranges = {str(k): v for k, v in environment.var_to_range.items() if isinstance(k, sympy.Symbol)}
        return content_hash(program), ranges, dict(environment.replacements), [n.name for n in program.graph.nodes]

    before = state()
    target = load(all_targets()[name])
    target.preflight(program, signature_of(program))
    assert state() == before
