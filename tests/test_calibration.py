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
from build.verify.check import reference_calls
from models.spec import Call
from targets.contract import DynamicDim, Signature, TensorSpec

PRECISIONS_BUILT = ("fp32", "int8-static")
SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype="float32", shape=(DynamicDim(symbol="s0", lo=1, hi=8), 4)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=(DynamicDim(symbol="s0", lo=1, hi=8), 3)),),
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
    ],
)
def test_a_value_that_cannot_calibrate_is_refused(value: torch.Tensor, word: str) -> None:
    with pytest.raises(InputError, match=word):
        check([*calls(3), Call(id="bad", inputs={"x": value})], [], SIGNATURE, "c")


def batch_of(data: Sequence[Call], name: str = "batch") -> Call:
    """One call that holds the examples of many."""
    return Call(id=name, inputs={"x": torch.cat([c.inputs["x"] for c in data])})


def test_an_evaluation_example_inside_a_calibration_batch_is_refused() -> None:
    data = calls(8)
    judged = [*calls(3, seed=1), Call(id="same", inputs=data[6].inputs)]
    with pytest.raises(
        InputError, match=r"1 of 2 calls hold examples of the evaluation set \(example 6 of 'batch' is 'same'\)"
    ):
        check([*calls(1, seed=2), batch_of(data)], judged, SIGNATURE, "c")


def test_a_calibration_example_inside_an_evaluation_batch_is_refused() -> None:
    data = calls(8)
    with pytest.raises(InputError, match=r"\('0-3' is example 2 of 'judged'\)"):
        check([data[3], *calls(20, seed=2)], [batch_of([*calls(2, seed=1), data[3]], "judged")], SIGNATURE, "c")


def test_batches_that_overlap_in_one_example_are_refused() -> None:
    data = calls(9)
    with pytest.raises(InputError, match="example 4 of 'batch' is example 0 of 'judged'"):
        check([batch_of(data[:5])], [batch_of(data[4:], "judged")], SIGNATURE, "c")


def test_padding_that_two_batches_share_is_no_shared_example() -> None:
    padding = [Call(id="padding", inputs={"x": torch.zeros(1, 4)})]
    data = [batch_of([*calls(7, seed=i), *padding], str(i)) for i in range(20)]
    assert check(data, [batch_of([*calls(7, seed=30, scale=0.5), *padding])], SIGNATURE, "c") == []


def test_an_example_is_all_its_inputs_together() -> None:
    batch = DynamicDim(symbol="s0", lo=1, hi=8)
    names = TensorSpec(name="ids", dtype="int64", shape=(batch, 3))
    kinds = TensorSpec(name="kinds", dtype="int64", shape=(batch, 3))
    signature = Signature(inputs=(names, kinds), outputs=SIGNATURE.outputs)
    ids, one, two = torch.arange(3 * 20).reshape(20, 3), torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 1]])
    data = [Call(id=str(i), inputs={"ids": ids[i : i + 1], "kinds": one}) for i in range(20)]
    apart = [Call(id="judged", inputs={"ids": ids[:2], "kinds": two.repeat(2, 1)})]
    shared = [Call(id="judged", inputs={"ids": ids[:2], "kinds": torch.cat([two, one])})]
    assert check(data, apart, signature, "c") == []
    with pytest.raises(InputError, match="'1' is example 1 of 'judged'"):
        check(data, shared, signature, "c")


def test_copies_of_an_example_count_once() -> None:
    copies = [Call(id=f"{i}-{c.id}", inputs=c.inputs) for i in range(30) for c in calls(3)]
    (line,) = check(copies, [], SIGNATURE, "c")
    assert "3 calibration examples are few" in line
    assert "the others of 90 repeat them" in line


def test_a_batch_counts_its_examples_and_a_sequence_is_one() -> None:
    assert check([batch_of(calls(8)), batch_of(calls(8, seed=1), "b")], [], SIGNATURE, "c") == []
    steps = DynamicDim(symbol="s1", lo=1, hi=512)
    sequence = Signature(
        inputs=(TensorSpec(name="x", dtype="float32", shape=(1, steps, 4)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(1, steps, 3)),),
    )
    (line,) = check([Call(id="0", inputs={"x": torch.randn(1, 128, 4)})], [], sequence, "c")
    assert "1 calibration examples are few" in line


TOKENS = Signature(
    inputs=tuple(
        TensorSpec(name=name, dtype="int64", shape=(DynamicDim(symbol="s0", lo=1, hi=8), 4)) for name in ("ids", "mask")
    ),
    outputs=SIGNATURE.outputs,
)


def tokens(count: int, *, start: int = 0, mask: int | None = 1) -> list[Call]:
    """Calls of token ids that differ, with a mask of one value, or one that varies."""
    masks = torch.full((1, 4), 1 if mask is None else mask)
    masks[0, -1] = 0 if mask is None else mask
    ids = torch.arange(start, start + count)
    return [Call(id=str(i), inputs={"ids": torch.stack([i, i + 1, i, i])[None], "mask": masks}) for i in ids]


def test_token_ids_that_are_all_alike_are_refused() -> None:
    data = [
        Call(id=str(i), inputs={"ids": torch.zeros(1, 4).long(), "mask": torch.ones(1, 4).long()}) for i in range(9)
    ]
    with pytest.raises(InputError, match="input 'ids' is 0 everywhere, in all 9 calls"):
        check(data, [], TOKENS, "c")


def test_a_mask_may_be_all_ones_where_the_evaluation_sets_is_too() -> None:
    assert check(tokens(20), tokens(5, start=50), TOKENS, "c") == []
    (line,) = check(tokens(20), tokens(5, start=50, mask=None), TOKENS, "c")
    assert "input 'mask' is 1 everywhere" in line


def test_calls_without_any_value_are_no_fault() -> None:
    empty = Signature(
        inputs=(TensorSpec(name="x", dtype="float32", shape=(DynamicDim(symbol="s0", lo=0, hi=8), 4)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(DynamicDim(symbol="s0", lo=0, hi=8), 3)),),
    )
    (line,) = check([Call(id="0", inputs={"x": torch.zeros(0, 4)})], calls(2), empty, "c")
    assert "0 calibration examples are few" in line


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


def test_what_is_said_of_calibration_stands_only_where_it_was_used(
    tmp_path: Path, program: Path, run_build: Callable[..., Any]
) -> None:
    path = tmp_path / "calibration.safetensors"
    write(path, calls(4, seed=9))
    run = run_build(
        *("--program", str(program), "--calibration", str(path)),
        *("--targets", "ort_web", "--precisions", "fp32,int8-static"),
    )
    said = {p: [w for w in run.row("ort_web", p)["warnings"] if "calibration examples" in w] for p in PRECISIONS_BUILT}
    assert {p: len(w) for p, w in said.items()} == {"fp32": 0, "int8-static": 1}


def test_a_file_of_calibration_calls_alone_verifies_on_made_up_inputs(tmp_path: Path, program: Path) -> None:
    data = program.with_suffix(".safetensors")
    write(data, calls(24, seed=5), prefix="calibration/")
    stripped = torch.export.load(program)
    stripped.example_inputs = None
    torch.export.save(stripped, program)
    folder = tmp_path / "folder"
    folder.mkdir()
    source = {"kind": "program", "name": "small", "key": "", "path": str(program), "data": str(data)}
    found = capture(source, folder, lambda stage: None)
    assert any("made-up inputs only" in w for w in found.warnings)
    given = [c.inputs["x"] for c in calls(24, seed=5)]
    recorded = [torch.from_numpy(inputs["input"]) for _, inputs, _ in reference_calls(folder, found)]
    assert recorded
    assert not any(torch.equal(one, other) for one in recorded for other in given)
