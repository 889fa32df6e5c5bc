"""Calibration data: whose, how much, and what is refused before anything is built from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from build.capture.calibration import check, record, split
from build.capture.run import capture
from build.errors import InputError
from models.spec import Call
from targets.contract import DynamicDim, Signature, TensorSpec

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype="float32", shape=(DynamicDim(symbol="s0", lo=1, hi=8), 4)),),
    outputs=(),
)


def calls(count: int, *, seed: int = 0, scale: float = 1.0) -> list[Call]:
    """Random calls of one example each."""
    generator = torch.Generator().manual_seed(seed)
    return [Call(id=f"{seed}-{i}", inputs={"x": torch.randn(1, 4, generator=generator) * scale}) for i in range(count)]


def test_good_data_has_no_remarks() -> None:
    assert check(calls(200), calls(20, seed=1, scale=0.7), SIGNATURE, "c") == []


def test_few_examples_are_a_warning() -> None:
    (line,) = check(calls(5), calls(5, seed=1, scale=0.5), SIGNATURE, "c")
    assert "5 calibration examples are few" in line


def test_a_range_that_misses_the_evaluation_set_is_a_warning() -> None:
    (line,) = check(calls(100), calls(20, seed=1, scale=10.0), SIGNATURE, "c")
    assert "lie outside the calibrated range" in line


def test_a_range_far_too_wide_is_a_warning() -> None:
    (line,) = check(calls(100, scale=100.0), calls(20, seed=1), SIGNATURE, "c")
    assert "times as wide" in line


def test_one_call_shared_with_the_evaluation_set_is_refused() -> None:
    data = calls(40)
    with pytest.raises(InputError, match="1 of 40 calls are in the evaluation set too"):
        check(data, [*calls(3, seed=1), Call(id="same", inputs=data[7].inputs)], SIGNATURE, "c")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (torch.full((1, 4), float("nan")), "NaN"),
        (torch.full((1, 4), float("inf")), "infinity"),
        (torch.zeros(1, 5), "dimension 1"),
        (torch.zeros(1, 4, dtype=torch.float64), "dtype is float64"),
    ],
)
def test_a_value_that_cannot_calibrate_is_refused(value: torch.Tensor, word: str) -> None:
    with pytest.raises(InputError, match=word):
        check([*calls(3), Call(id="bad", inputs={"x": value})], [], SIGNATURE, "c")


def test_a_constant_input_is_refused() -> None:
    constant = [Call(id=str(i), inputs={"x": torch.full((1, 4), 0.5)}) for i in range(20)]
    with pytest.raises(InputError, match=r"is 0\.5 everywhere"):
        check(constant, [], SIGNATURE, "c")


def test_the_hash_names_values_not_ids() -> None:
    first, second = record(calls(4), "a"), record(calls(4), "b")
    other = record(calls(4, seed=1), "a")
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.sha256 == second.sha256 != other.sha256


def test_calls_beside_a_program_calibrate_by_name() -> None:
    found = split([Call(id="calibration/0", inputs={}), Call(id="0", inputs={})])
    assert [[c.id for c in part] for part in found] == [["calibration/0"], ["0"]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A small classifier, saved with labelled calls beside it."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    exported = torch.export.export(network, (torch.randn(2, 4),), dynamic_shapes=({0: torch.export.Dim("b", max=8)},))
    torch.export.save(exported, tmp_path / "small.pt2")
    write(tmp_path / "small.safetensors", calls(24, seed=5), label=True)
    return tmp_path / "small.pt2"


def write(path: Path, data: Sequence[Call], *, label: bool = False, prefix: str = "") -> None:
    """A file of calls."""
    tensors: dict[str, Any] = {f"{prefix}{c.id}/input": c.inputs["x"] for c in data}
    if label:
        tensors |= {f"{prefix}{c.id}/label": torch.tensor(i % 3) for i, c in enumerate(data)}
    save_file(tensors, path)


WRONG: list[tuple[str, Callable[[list[Call]], dict[str, torch.Tensor]], str]] = [
    ("name", lambda data: {f"{c.id}/image": c.inputs["x"] for c in data}, "no input of the program"),
    ("shape", lambda data: {f"{c.id}/input": c.inputs["x"][:, :3].clone() for c in data}, "dimension 1"),
    ("dtype", lambda data: {f"{c.id}/input": c.inputs["x"].double() for c in data}, "dtype is float64"),
    ("NaN", lambda data: {f"{c.id}/input": c.inputs["x"] * float("nan") for c in data}, "holds NaN"),
    ("constant", lambda data: {f"{c.id}/input": torch.ones(1, 4) for c in data}, "is 1 everywhere"),
]


def captured(program: Path, calibration: Path, folder: Path) -> None:
    """Capture a program with a calibration file."""
    folder.mkdir()
    source = {"kind": "program", "name": "small", "key": "", "path": str(program), "calibration": str(calibration)}
    capture({**source, "data": str(program.with_suffix(".safetensors"))}, folder, lambda stage: None)


@pytest.mark.parametrize(("data", "word"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_calibration_file_is_refused(
    tmp_path: Path, program: Path, data: Callable[..., Any], word: str
) -> None:
    path = tmp_path / "calibration.safetensors"
    save_file(data(calls(20, seed=9)), path)
    with pytest.raises(InputError, match=word):
        captured(program, path, tmp_path / "folder")


def test_the_evaluation_set_may_not_calibrate(tmp_path: Path, program: Path, run_build: Callable[..., Any]) -> None:
    path = tmp_path / "calibration.safetensors"
    write(path, calls(24, seed=5))
    run = run_build(
        "--program", str(program), "--calibration", str(path), "--targets", "ort_web", "--precisions", "int8-static"
    )
    assert run.code == 2
    assert "24 of 24 calls are in the evaluation set too" in run.row("ort_web", "int8-static")["error"]["message"]
    assert not list(run.out.rglob("*.onnx")), "nothing is built from it"


def test_calibrated_precisions_without_data_say_what_to_give(program: Path, run_build: Callable[..., Any]) -> None:
    run = run_build("--program", str(program), "--targets", "ort_web", "--precisions", "int8-static")
    error = run.row("ort_web", "int8-static")["error"]
    assert run.code == 2
    assert "no calibration data" in error["message"]
    assert "--calibration" in error["remedy"]


def test_calls_named_calibration_calibrate_and_labels_judge(
    tmp_path: Path, program: Path, run_build: Callable[..., Any]
) -> None:
    data = {f"{c.id}/input": c.inputs["x"] for c in calls(24, seed=5)}
    data |= {f"{c.id}/label": torch.tensor(i % 3) for i, c in enumerate(calls(24, seed=5))}
    data |= {f"calibration/{c.id}/input": c.inputs["x"] for c in calls(100, seed=6)}
    save_file(data, program.with_suffix(".safetensors"))
    run = run_build("--program", str(program), "--targets", "ort_web", "--precisions", "int8-static")
    row = run.row("ort_web", "int8-static")
    assert run.code == 0, run.stderr
    assert row["metric"]["name"] == "top1_accuracy"
