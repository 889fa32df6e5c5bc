"""The calls of a user's spec: each is checked by name, and what does not fit is one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from build.capture.given import fitting
from build.capture.run import capture
from build.errors import InputError
from build.record import ProgramRecord
from models.spec import Call
from targets.contract import DynamicDim, Signature, TensorSpec

BATCH = DynamicDim(symbol="s0", lo=1, hi=8)
SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="x", dtype="float32", shape=(BATCH, 4)),
        TensorSpec(name="k", dtype="int64", shape=(BATCH,)),
    ),
    outputs=(TensorSpec(name="y", dtype="float32", shape=(BATCH, 3)),),
)
#: what a user may write, whatever the types say
ANY_CALL: Any = Call


def call(name: Any = "a", label: Any = None, **changed: Any) -> Call:
    """A call that fits, with some inputs changed."""
    return Call(id=name, inputs={"x": torch.zeros(1, 4), "k": torch.zeros(1).long(), **changed}, label=label)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([call("a"), call("b"), call("a")], "the set: two calls have the id 'a'"),
        ([call("")], "call id '' is no printable text"),
        ([call(3)], "call id 3 is no printable text"),
        ([{"x": torch.zeros(1, 4)}], "holds a dict, not a Call"),
        ([Call(id="a", inputs={"x": torch.zeros(1, 4)})], "call 'a' has no value for input 'k'"),
        ([ANY_CALL(id="a", inputs=[torch.zeros(1, 4)])], "call 'a': its inputs are a list"),
        ([call(image=torch.zeros(1, 4))], "call 'a' has a value for 'image', which is no input .* takes x, k"),
        ([call(x=torch.zeros(4))], "call 'a', input 'x': shape .4. has 1 dimensions; expected .1..8, 4."),
        ([call(x=torch.zeros(1, 5))], "input 'x': dimension 1 of shape .1, 5. is 5; expected 4"),
        ([call(x=torch.zeros(9, 4))], "input 'x': dimension 0 of shape .9, 4. is 9; expected 1..8"),
        ([call(x=torch.zeros(2, 4))], "input 'k': dimension 0 is 1, which means s0=1"),
        ([call(x=torch.zeros(1, 4).double())], "input 'x': dtype is float64; expected float32"),
        ([call(x=np.zeros((1, 4), np.float32))], "input 'x': it is a ndarray, not a tensor"),
        ([call(x=None)], "input 'x': it is a NoneType, not a tensor"),
        ([call(label=-1)], "call 'a': its label is -1"),
        ([call(label=0.5)], "call 'a': its label is 0.5"),
        ([call(label=True)], "call 'a': its label is True"),
        ([call(label=torch.tensor([1, 2]))], "call 'a': its label is tensor"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_name(calls: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        fitting(calls, SIGNATURE, "the set")
    assert caught.value.message.startswith("the set")
    assert caught.value.remedy


def test_calls_come_in_the_programs_order_with_plain_labels() -> None:
    given = ANY_CALL(id="a", inputs={"k": torch.ones(1).long(), "x": torch.ones(1, 4)}, label=np.int64(2))
    (found,) = fitting([given], SIGNATURE, "the set")
    assert list(found.inputs) == ["x", "k"]
    assert type(found.label) is int
    assert (found.id, found.label) == ("a", 2)


SPEC = """
import torch
from models.spec import Call, ModelSpec, OutputMeaning, Preprocessing

torch.manual_seed(0)
DATA = torch.randn(64, 4)

def one(i, batch=1, **more):
    return Call(id=str(i), inputs={{"input": DATA[i : i + batch]}}, **more)

def make():
    return ModelSpec(
        name="own", summary="s", factory=lambda: torch.nn.Linear(4, 3), example=lambda: {{"input": DATA[:2]}},
        preprocessing=Preprocessing(steps=[], layout="BF"), output=OutputMeaning(output="y", kind="classes"),
        dynamic_shapes=lambda: {{"input": {{0: torch.export.Dim("batch", min=1, max=64)}}}}, output_names=["y"],
        metric="top1_accuracy", calibration=lambda: {calibration}, evaluation=lambda: {evaluation},
    )
"""
GOOD = {"calibration": "[one(i) for i in range(20)]", "evaluation": "[one(i, label=0) for i in range(40, 44)]"}


def captured(folder: Path, **changed: str) -> ProgramRecord:
    """Capture a spec of the user's own, some of its calls changed."""
    (folder / "own.py").write_text(SPEC.format(**{**GOOD, **changed}))
    (folder / "out").mkdir()
    source = {"kind": "module", "name": "own", "key": "", "path": str(folder / "own.py"), "factory": "make"}
    return capture(source, folder / "out", lambda stage: None)


def test_a_good_spec_is_captured(tmp_path: Path) -> None:
    record = captured(tmp_path)
    assert sum(c.kind == "evaluation" for c in record.calls) == 4
    assert record.calibration is not None
    assert len(record.calibration.calls) == 20


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"evaluation": "[one(40), one(40)]"}, "own.py:make, evaluation set: two calls have the id '40'"),
        ({"calibration": "[one(1), one(1)]"}, "own.py:make, calibration set: two calls have the id '1'"),
        (
            {"calibration": "[Call(id='7', inputs={'image': DATA[:1]})]"},
            "own.py:make, calibration set: call '7' has a value for 'image'",
        ),
        (
            {"evaluation": "[Call(id='7', inputs={'input': DATA[0]})]"},
            "own.py:make, evaluation set: call '7', input 'input': shape .4. has 1 dimensions",
        ),
        ({"evaluation": "None"}, "own.py:make failed: TypeError"),
        ({"evaluation": "[one(40, 4, label=0)]"}, "call 'evaluation/40' has one label, but output 'y' holds 4 rows"),
        ({"calibration": "[one(0, 64)]"}, "hold examples of the evaluation set .example 40 of '0' is '40'"),
    ],
)
def test_bad_data_in_a_spec_is_bad_input(tmp_path: Path, changed: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        captured(tmp_path, **changed)


def test_calls_that_can_be_read_only_once_are_all_kept(tmp_path: Path) -> None:
    record = captured(tmp_path, **{name: f"({text[1:-1]})" for name, text in GOOD.items()})
    assert sum(c.kind == "evaluation" for c in record.calls) == 4
    assert record.calibration is not None
    assert len(record.calibration.calls) == 20


def test_an_empty_evaluation_set_is_spoken_of(tmp_path: Path) -> None:
    assert any("made-up inputs only" in w for w in captured(tmp_path, evaluation="[]").warnings)
