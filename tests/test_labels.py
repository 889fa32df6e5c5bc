"""Labels of calls: what can be judged by them, and what is said where that is not so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from build.calls import Call, write_calls
from build.capture.run import capture
from build.capture.task import task_of
from build.errors import InputError
from models.spec import Call as SpecCall
from targets.contract import Signature, TensorSpec
from tests.capture_support import labelled, program_source, save
from tests.model_support import spec_of


@pytest.mark.parametrize("labels", [[1, 7], [7, None], [1, 3]])
def test_a_label_that_is_no_class_of_the_program_is_refused(tmp_path: Path, labels: list[int | None]) -> None:
    wrong = next((i, x) for i, x in enumerate(labels) if x is not None and x > 2)
    with pytest.raises(InputError, match=rf"label {wrong[1]} of call '{wrong[0]}' .* has 3 .*'output'"):
        capture(labelled(tmp_path, labels), tmp_path / "out", lambda stage: None)


@pytest.mark.parametrize(
    ("labels", "outputs", "why"), [([1, None], 3, "1 of 2 .*none"), ([0, 1], 1, "no output holds")]
)
def test_labels_that_cannot_be_used_are_spoken_of(
    tmp_path: Path, labels: list[int | None], outputs: int, why: str
) -> None:
    record = capture(labelled(tmp_path, labels, outputs), tmp_path / "out", lambda stage: None)
    assert record.metric is None
    assert any(re.match(f"the labels are not used: {why}", w) for w in record.warnings)


def test_labels_of_the_programs_classes_make_a_metric(tmp_path: Path) -> None:
    record = capture(labelled(tmp_path, [0, 2]), tmp_path / "out", lambda stage: None)
    assert (record.metric, record.warnings) == ("top1_accuracy", ())


def test_a_label_on_a_call_of_several_examples_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 3).eval(), (torch.randn(4, 4),))
    data = [Call(id="0", inputs={"input": torch.randn(4, 4)}, label=1)]
    write_calls(tmp_path / "d.safetensors", data)
    (tmp_path / "out").mkdir()
    job = program_source(save(program, tmp_path / "p.pt2"), data=str(tmp_path / "d.safetensors"))
    with pytest.raises(InputError, match=r"'evaluation/0' has one label, but output 'output' holds 4 rows") as caught:
        capture(job, tmp_path / "out", lambda stage: None)
    assert "a call of its own" in (caught.value.remedy or "")


def test_a_spec_whose_labels_are_no_classes_is_refused() -> None:
    spec = spec_of("digits_cnn")
    signature = Signature(inputs=(), outputs=(TensorSpec(name="logits", dtype="float32", shape=(1, 10)),))
    with pytest.raises(InputError, match=r"label 10 of call 'a' .* has 10"):
        task_of(spec, signature, [SpecCall(id="a", inputs={}, label=10)])
