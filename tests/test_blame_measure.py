"""What blame measures: values that are not finite, nodes that can't be measured, nodes kept in float."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from build.blame import worker
from build.blame.__main__ import Blame, blame
from build.blame.culprit import Measured, culprit, drops
from build.blame.cut import CutPoint, cut
from build.blame.measure import Lab, _compare
from build.blame.report import advice, text, to_json
from build.envs import Environment
from build.errors import InputError, LoweringError, StorageError
from build.manifest import exit_code
from build.options import parse
from build.plan import rows
from build.program import call, signature_of
from build.protocol import Worker, error_to_json
from build.record import REFERENCE, CallRecord, ProgramRecord
from build.sources import Source
from build.verify.accuracy import Agreement
from targets.contract import LowerRequest, Target
from targets.registry import select

ROW = {"model": "m", "target": "t", "precision": "int8-static"}
POINT = CutPoint(name="a", shown="a", op="aten.linear.default", source=None, layer="net.a", inputs=())
WANT = np.arange(1.0, 9.0, dtype=np.float32).reshape(2, 4)


def compared(got: Any, want: Any = WANT) -> Measured:
    """One value of one call."""
    return _compare(POINT, [np.asarray(got, np.float32)], [np.asarray(want, np.float32)])


def node(measured: Measured) -> tuple[dict[str, Any], list[str]]:
    """Its JSON, which must be JSON, and its line of the table."""
    value = to_json([measured], ROW)
    json.dumps(value, allow_nan=False)
    return value["nodes"][0], re.split(r"  +", text(value).splitlines()[2])


def test_a_value_that_is_all_nan_is_the_culprit_and_never_equal() -> None:
    found = compared(np.full_like(WANT, np.nan))
    assert culprit([found], "int8-static") is found
    value, line = node(found)
    assert (value["nonfinite"], value["snr_db"]) == (8, -9999.0)
    assert line[2:6] == ["-inf", "-inf", "150.0", "8"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_breaks_a_value_whose_rest_is_good(bad: float) -> None:
    got = WANT.copy()
    got[1, 2] = bad
    got[0, 0] += 0.001
    found = compared(got)
    assert found.nonfinite == 1
    assert found.max_abs == pytest.approx(0.001, rel=1e-3), "over the finite rest"
    assert found.snr_db > 60
    assert node(found)[1][5] == "1"
    assert culprit([found], "fp32") is found
    assert to_json([found], ROW)["diverged"]


def test_what_is_not_finite_in_pytorch_too_is_no_difference() -> None:
    want = WANT.copy()
    want[0, :3] = math.nan, math.inf, -math.inf
    found = compared(want, want)
    assert (found.nonfinite, found.snr_db, found.max_abs) == (0, math.inf, 0.0)
    assert math.isfinite(found.spread)
    assert compared(-want, want).nonfinite == 2, "infinities of the other sign"


def test_equal_and_infinitely_wrong_are_told_apart() -> None:
    equal, wrong = node(compared(WANT)), node(compared(WANT, np.zeros_like(WANT)))
    assert (equal[0]["snr_db"], equal[0]["channel_snr_db"]) == (None, None)
    assert (wrong[0]["snr_db"], wrong[0]["channel_snr_db"]) == (-9999.0, -9999.0)
    assert equal[1].count("equal") == 2
    assert wrong[1].count("-inf") == 2


def test_agreement_counts_elements_that_are_not_finite_on_one_side_only() -> None:
    found = Agreement()
    found.add(np.array([math.nan, math.inf, math.nan, 1.0]), np.array([math.nan, math.inf, 2.0, 1.0]))
    assert found.nonfinite == 1


def chain(**worth: float) -> list[Measured]:
    """Nodes that read one another in order; NaN stands for a value with one."""
    names = list(worth)
    return [
        Measured(
            point=replace(POINT, name=n, shown=n, inputs=tuple(names[max(0, i - 1) : i])),
            snr_db=40.0,
            channel_snr_db=40.0 if math.isnan(worth[n]) else worth[n],
            nonfinite=int(math.isnan(worth[n])),
            max_abs=0.1,
        )
        for i, n in enumerate(names)
    ]


def test_losses_of_broken_values_are_numbers() -> None:
    assert drops(chain(a=40.0, b=math.nan, c=-math.inf), "int8-static") == {"a": 10.0, "b": 140.0, "c": 0.0}


def test_a_broken_value_that_no_reader_suffers_from_comes_after_those_that_spread() -> None:
    found = culprit(chain(mask=math.nan, softmax=40.0, broken=2.0, end=1.0), "int8-static")
    assert found is not None
    assert found.point.name == "broken"
    alone = culprit(chain(mask=math.nan, softmax=40.0), "int8-static")
    assert alone is not None
    assert alone.point.name == "mask"


def test_of_a_node_that_is_shown_twice_the_worse_value_counts() -> None:
    before, behind = chain(a=math.nan)[0], chain(a=40.0)[0]
    assert culprit([before, behind], "int8-static") is before


# ---- nodes that can't be measured ------------------------------------------------------------------------------------


class TwoBranches(nn.Module):
    """The second and third convolution do not read the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(i, 4, 3, padding=1) for i in (1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = torch.relu(self.a(x)), torch.relu(self.b(x))
        y: torch.Tensor = torch.relu(self.c(right)) + left
        return y


class Counting(nn.Module):
    """No floating value at all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@dataclass
class Fake:
    """A target that runs cuts in PyTorch; ``fails`` says of which values it cannot be lowered."""

    fails: Callable[[Sequence[str]], Exception | None] = lambda shown: None
    kept: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def preflight(self, program: Any, signature: Any) -> list[Any]:
        return []

    def lower(self, program: Any, request: LowerRequest) -> Any:
        shown = tuple(s.name for s in request.signature.outputs)
        error = self.fails(shown)
        if error is not None:
            raise error
        layers = {n.name: str(n.meta["nn_module_stack"]) for n in program.graph.nodes if n.op == "call_function"}
        self.kept.append((shown, tuple(layers[n].rpartition("self__")[2][0] for n in request.keep_float)))
        self._program, self._shown = program, shown
        return type("Lowered", (), {"files": ("model",)})

    def load(self, folder: Path, files: Any, signature: Any) -> Any:
        return self

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        values = call(self._program)([torch.from_numpy(x) for x in inputs.values()])
        return {n: t.numpy() for n, t in zip(self._shown, values, strict=True)}


@pytest.fixture
def lab(tmp_path: Path) -> Callable[..., Lab]:
    """A lab for a module on a fake target."""

    def make(target: Fake, module: nn.Module, example: torch.Tensor, **changes: Any) -> Lab:
        program = torch.export.export(module.eval(), (example,))
        signature = signature_of(program)
        tensors = {f"example/in/{signature.inputs[0].name}": example.numpy()}
        tensors |= {
            f"example/out/{s.name}": t.numpy() for s, t in zip(signature.outputs, call(program)([example]), strict=True)
        }
        save_file(tensors, tmp_path / REFERENCE)
        record = ProgramRecord(
            name="m",
            key="",
            sha256="",
            signature=signature,
            calls=(CallRecord(id="example", kind="example"),),
            files={},
            source={},
        )
        return Lab(
            target=cast("Target", target),
            program=lambda: program,
            record=record,
            folder=tmp_path,
            precision="int8-weight",
            **changes,
        )

    return make


IMAGE = torch.rand(1, 1, 8, 8)


def handled(monkeypatch: pytest.MonkeyPatch, made: Lab, keep: Sequence[str] = ()) -> dict[str, Any]:
    """What the worker answers for this lab's program and target."""
    monkeypatch.setattr(worker, "load_program", lambda path: made.program())
    monkeypatch.setattr(worker, "read_record", lambda folder: made.record)
    monkeypatch.setattr(worker, "unchanged", lambda folder, key: contextlib.nullcontext())
    job = {
        "program": str(made.folder),
        "record": "",
        "target": "t",
        "precision": made.precision,
        "keep_float": list(keep),
    }
    return worker.handle(made.target, job, lambda stage: None)


def test_no_node_that_could_be_measured_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, lab: Callable[..., Lab]
) -> None:
    broken = Fake(fails=lambda shown: RuntimeError("the converter is not well"))
    with pytest.raises(LoweringError, match=r"none of 4 nodes .* RuntimeError: the converter is not well"):
        handled(monkeypatch, lab(broken, TwoBranches(), IMAGE))


def test_nodes_that_could_not_be_measured_are_counted_with_the_first_reason(
    monkeypatch: pytest.MonkeyPatch, lab: Callable[..., Lab]
) -> None:
    broken = Fake(fails=lambda shown: RuntimeError("no relu_1") if "relu_1" in shown else None)
    value = handled(monkeypatch, lab(broken, TwoBranches(), IMAGE))
    assert [n["name"] for n in value["nodes"] if n["error"]] == ["conv2d_1"]
    words = text(value)
    assert "1 of 4 nodes could not be measured, the first: RuntimeError: no relu_1" in words
    assert "no node that could be measured loses more than one bit: nothing else to blame" in words


def test_a_program_without_floating_values_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, lab: Callable[..., Lab]
) -> None:
    with pytest.raises(InputError, match="computes no floating-point value"):
        handled(monkeypatch, lab(Fake(), Counting(), torch.tensor([1, 2, 3])))


def test_a_full_disk_is_said_as_such(lab: Callable[..., Lab]) -> None:
    full = Fake(fails=lambda shown: StorageError("no space left"))
    with pytest.raises(StorageError):
        lab(full, TwoBranches(), IMAGE).measure()


# ---- kept nodes ------------------------------------------------------------------------------------------------------


def test_a_kept_node_is_kept_in_every_cut_that_holds_it(
    monkeypatch: pytest.MonkeyPatch, lab: Callable[..., Lab]
) -> None:
    """In a cut without the first convolution the others have other numbers."""
    target = Fake(fails=lambda shown: RuntimeError("one at a time") if len(shown) > 1 else None)
    value = handled(monkeypatch, lab(target, TwoBranches(), IMAGE), ["conv2d_1"])
    assert value["kept_float"] == ["conv2d_1"]
    assert target.kept == [(("relu",), ()), (("relu_1",), ("b",)), (("relu_2",), ("b",)), (("add",), ("b",))]
    names = [n.name for n in cut(lab(target, TwoBranches(), IMAGE).program(), ["relu_1"]).graph.nodes]
    assert "conv2d" in names, "or this test shows nothing"


def test_a_kept_name_that_is_no_node_is_refused_as_by_a_build(lab: Callable[..., Lab]) -> None:
    with pytest.raises(InputError, match="--keep-float conv2d_7: the program has no such node") as caught:
        lab(Fake(), TwoBranches(), IMAGE, keep_float=("conv2d_7",)).measure()
    assert "conv2d_1" in str(caught.value.remedy)


def test_the_session_hands_kept_nodes_on_and_ends_with_the_errors_exit_code(tmp_path: Path) -> None:
    options = parse("blame", ("ort_web",), ["--keep-float", "a", "b", "--out", str(tmp_path)])
    source = cast("Source", type("Source", (), {"name": "m"}))
    (row,) = rows([source], select(options.targets), ("int8-static",))
    jobs: list[Mapping[str, Any]] = []

    class Answering:
        def submit(self, job: Mapping[str, Any], on_stage: Any) -> dict[str, Any]:
            jobs.append(job)
            return {"error": error_to_json(LoweringError("none of 4 nodes could be measured: odd"))}

    session = Blame(options)
    session._records["m"] = cast("ProgramRecord", SimpleNamespace(to_json=dict))
    found = session._build_one(row, cast("Worker", Answering()), cast("Environment", None))
    assert jobs[0]["keep_float"] == ["a", "b"]
    assert exit_code([found]) == 3


def test_the_session_refuses_a_search() -> None:
    with pytest.raises(InputError, match="--auto-mixed has no meaning in session blame"):
        blame(parse("blame", ("ort_web",), ["--auto-mixed", "--precision", "int8-static"]))


def test_the_advice_keeps_what_was_kept() -> None:
    assert "--keep-float x a " in advice(compared(WANT), "int8-static", ["x"])[0]
    assert "--keep-float" not in advice(compared(WANT), "int8-static", ["a"])[0]


def test_the_advice_for_a_program_that_is_quantised_already_can_be_followed() -> None:
    lines = advice(compared(WANT), "int8-static", own_quantisation=True)
    assert "layer net.a" in lines[0]
    assert not any("--" in line for line in lines), "a build refuses those options for such a program"
