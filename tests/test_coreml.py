"""The Core ML target: what it converts, and what the saved package declares."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from build.errors import InputError, LoweringError
from targets import coreml
from targets.mlpackage import package
from targets.mlpackage.values import FP16_MAX
from tests.coreml_support import Fn, Fn2, build, export, same

R = torch.randn


def test_names_ranges_and_types_are_the_programs(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 3)

        def forward(self, feats: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.a(feats), "next": ids + 1}

    n = Dim("n", min=1, max=9)
    calls = [(R(b, 6), torch.randint(0, 5, (b,))) for b in (2, 1, 9)]
    lowered = same(Net(), calls, tmp_path, ({0: n}, {0: n}))
    spec = package.read_spec(tmp_path / "out" / coreml.PACKAGE)
    assert package.names(spec) == (["feats", "ids"], ["logits", "next"])
    bounds = spec.description.input[0].type.multiArrayType.shapeRange.sizeRanges
    assert [(b.lowerBound, b.upperBound) for b in bounds] == [(1, 9), (6, 6)]
    assert lowered.contract["carried"] == {"ids": "int64 as int32", "next": "int64 as int32"}
    assert lowered.contract["minimum_deployment_target"] == "iOS17"
    assert sum(lowered.contract["mil_ops"].values()) == lowered.coverage.delegated > 0


def test_a_dimension_in_steps_is_listed_shape_by_shape(tmp_path: Path) -> None:
    dynamic = ({2: 8 * Dim("n", min=1, max=6)},)
    lowered = same(nn.AvgPool1d(4), [(R(2, 3, 8 * n),) for n in (3, 1, 6)], tmp_path, dynamic)
    shapes = package.read_spec(tmp_path / "out" / coreml.PACKAGE).description.input[0].type.multiArrayType
    assert sorted(s.shape[2] for s in shapes.enumeratedShapes.shapes) == [8, 16, 24, 32, 40, 48]
    assert not lowered.warnings


def test_steps_that_cannot_be_listed_are_a_warning(tmp_path: Path) -> None:
    dynamic = ({0: Dim("b", min=1, max=100), 2: 8 * Dim("n", min=1, max=6)},)
    lowered = same(nn.AvgPool1d(4), [(R(2, 3, 24),), (R(100, 3, 48),)], tmp_path, dynamic)
    assert any("steps of 8" in w for w in lowered.warnings)


def test_sizes_outside_the_range_are_refused_at_run_time(tmp_path: Path) -> None:
    program = export(nn.Linear(6, 3), R(2, 6), dynamic=({0: Dim("b", min=1, max=8)},))
    _, runner = build(program, tmp_path)
    name = runner.signature().inputs[0].name
    with pytest.raises(InputError, match="9"):
        runner.run({name: np.zeros((9, 6), np.float32)})


def test_integers_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    _, runner = build(export(Fn(lambda s, x: x + 1), torch.tensor([1, 2])), tmp_path)
    assert runner.run({"x": np.array([5, -7])})["output"].tolist() == [6, -6]
    with pytest.raises(InputError, match="32-bit"):
        runner.run({"x": np.array([2**40, 0])})
    big = nn.Buffer(torch.tensor([2**40, 1]))
    with pytest.raises(LoweringError, match=r"k.*int32") as caught:
        build(export(Fn(lambda s, x: x + s.k, k=big), torch.tensor([1, 2])), tmp_path / "k")
    assert caught.value.op == "aten.add.Tensor"
    assert "coreml_support.py" in str(caught.value.source)
    with pytest.raises(LoweringError, match="int32"):
        build(export(Fn(lambda s, x: x * 2**33), torch.tensor([1, 2])), tmp_path / "s")


def test_bool_and_small_integer_inputs_and_outputs(tmp_path: Path) -> None:
    flags = torch.tensor([True, False, True])
    lowered = same(Fn2(lambda s, x, m: (torch.where(m, x, 0.0), ~m)), [(R(3), flags)], tmp_path)
    assert lowered.contract["carried"]["y"] == "bool as int32"
    (tmp_path / "u").mkdir()
    same(Fn(lambda s, x: x.float() / 255), [(torch.tensor([0, 128, 255], dtype=torch.uint8),)], tmp_path / "u")


def test_scalars_constants_and_repeated_outputs(tmp_path: Path) -> None:
    module = Fn(lambda s, x: (x * 2, s.k, x, x.sum(), None), k=nn.Buffer(torch.arange(4.0)))
    same(module, [(R(3),)], tmp_path)
    (tmp_path / "twice").mkdir()

    def twice(_: Fn, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x.relu()
        return {"a": y, "b": y}

    same(Fn(twice), [(R(3),)], tmp_path / "twice")


def test_a_changed_buffer_goes_from_call_to_call(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0]))
            self.register_buffer("count", torch.tensor([5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            self.count.add_(1)
            return self.total / self.count

    lowered = same(Counter(), [(R(3),), (R(3),), (R(3),)], tmp_path)
    assert lowered.files == (coreml.PACKAGE, "state.safetensors")
    assert any("state_total" in w for w in lowered.warnings)


def test_a_changed_input_is_a_warning(tmp_path: Path) -> None:
    lowered = same(Fn(lambda s, x: x.add_(1) * 2), [(R(3),)], tmp_path)
    assert any("in place" in w for w in lowered.warnings)


@pytest.mark.parametrize(
    ("module", "calls"),
    [
        (Fn(lambda s, x: torch.log(x)), [(torch.tensor([0.0, 1.0, 1e-30]),)]),
        (Fn(lambda s, x: torch.reciprocal(x)), [(torch.tensor([1e-4, -4.0]),)]),
        (Fn(lambda s, x: torch.rsqrt(x)), [(torch.tensor([1e-13, 4.0]),)]),
        (Fn(lambda s, x: (x // 3, x % 3, x // -3)), [(torch.tensor([-7, -1, 0, 1, 7, 2**30 + 1]),)]),
        (
            Fn2(lambda s, x, y: torch.div(x, y, rounding_mode="floor")),
            [(torch.tensor([1.0, -7.0]), torch.tensor([0.1, 2]))],
        ),
        (Fn(lambda s, x: torch.argmax(x)), [(R(3, 4),)]),
        (Fn(lambda s, x: x.triu(1)), [(torch.full((4, 4), -torch.inf),)]),
        (Fn(lambda s, x: s.r(x)[0], r=nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)), [(R(2, 4, 6),)]),
        (Fn(lambda s, x: s.r(x)[0], r=nn.GRU(6, 5, batch_first=True)), [(R(2, 4, 6),)]),
    ],
)
def test_what_coremltools_alone_gets_wrong(module: nn.Module, calls: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    same(module, calls, tmp_path)


def test_lstm_stays_one_operation(tmp_path: Path) -> None:
    dynamic = ({0: Dim("b", min=1, max=4)},)
    module = Fn(lambda s, x: s.r(x)[0], r=nn.LSTM(6, 5, batch_first=True))
    lowered = same(module, [(R(2, 4, 6),), (R(1, 4, 6),), (R(4, 4, 6),)], tmp_path, dynamic)
    assert lowered.contract["mil_ops"]["lstm"] == 1


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = R(2, 3, 8, 8)
    found = []
    for name in ("a", "b"):
        build(export(module, x, dynamic=({0: Dim("b", min=1, max=8)},)), tmp_path / name)
        files = sorted(p for p in (tmp_path / name).rglob("*") if p.is_file())
        found.append({str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files})
    assert found[0] == found[1]
    # Both were built on one day: nothing in them may tell it.
    today = datetime.date.today().isoformat().encode()
    assert not [name for name, content in found[0].items() if today in content]


def test_fp16_keeps_the_interface_and_refuses_weights_beyond_its_range(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 3)
    x = R(2, 6)
    lowered, runner = build(export(module, x), tmp_path / "ok", "fp16")
    got = runner.run({"input": x.numpy()})["output"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, module(x).detach().numpy(), atol=2e-2)
    assert lowered.contract["compute_precision"] == "fp16"
    heavy = Fn(lambda s, x: x * s.k, k=nn.Buffer(torch.tensor([1e5, 1.0])))
    with pytest.raises(LoweringError, match=f"{FP16_MAX:g}") as caught:
        build(export(heavy, R(2)), tmp_path / "k", "fp16")
    assert caught.value.op == "aten.mul.Tensor"


def test_fp16_keeps_a_mask_of_the_lowest_number_in_fp32(tmp_path: Path) -> None:
    def masked(_: nn.Module, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return (x + (1 - m) * torch.finfo(torch.float32).min).softmax(-1)

    x, m = R(2, 4), torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 1]])
    lowered, runner = build(export(Fn2(masked), x, m), tmp_path, "fp16")
    want = masked(Fn2(masked), x, m)
    np.testing.assert_allclose(runner.run({"x": x.numpy(), "y": m.numpy()})["output"], want.numpy(), atol=5e-3)
    assert any("fp32" in w for w in lowered.warnings)


def test_integers_that_can_leave_32_bits_are_a_warning(tmp_path: Path) -> None:
    lowered, _ = build(export(Fn(lambda s, x: (x * x).sum(1)), torch.arange(6).reshape(2, 3)), tmp_path / "a")
    assert any("aten.mul" in w and "2**31" in w for w in lowered.warnings)
    assert any("aten.sum" in w and "2**31" in w for w in lowered.warnings)
    lowered, _ = build(export(Fn(lambda s, x: (x > 0).sum(1) * 2), R(2, 3)), tmp_path / "b")
    assert not lowered.warnings


def test_losses_and_sums_of_logarithms(tmp_path: Path) -> None:
    def model(_: Any, x: torch.Tensor) -> Any:
        loss = nn.functional.binary_cross_entropy_with_logits(x, torch.zeros_like(x), reduction="none")
        return loss, torch.logaddexp(x, x.flip(0))

    same(Fn(model), [(torch.tensor([-200.0, -1.0, 0.5, 99.0]),)], tmp_path)
