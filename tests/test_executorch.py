"""The ExecuTorch target: pre-flight, ranges, what XNNPACK may take, and the host runner."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from build.errors import InputError, LoweringError, UnsupportedError
from build.program import call, signature_of
from targets import executorch
from targets.contract import Lowered, LowerRequest, Runner, Signature


def reloaded(module: nn.Module, args: tuple[Any, ...], dynamic: Any = None) -> Callable[[], Any]:
    """A function that loads the exported program anew, as every lowering must."""
    store = io.BytesIO()
    torch.export.save(torch.export.export(module, args, dynamic_shapes=dynamic), store)
    return lambda: torch.export.load(io.BytesIO(store.getvalue()))


def lowered(
    load: Callable[[], Any], directory: Path, precision: str = "fp32"
) -> tuple[Lowered, Runner, Signature, Callable[[list[Any]], list[Any]]]:
    signature = signature_of(load())
    directory.mkdir(parents=True, exist_ok=True)
    request = LowerRequest(model="test", signature=signature, precision=precision, directory=directory)
    result = executorch.lower(load(), request)
    return result, executorch.load(directory, result.files, signature), signature, call(load())


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    ).eval()


def refusals(module: nn.Module, args: tuple[Any, ...], dynamic: Any = None) -> Sequence[Any]:
    program = torch.export.export(module, args, dynamic_shapes=dynamic)
    return [f for f in executorch.preflight(program, signature_of(program)) if f.verdict == "refused"]


@pytest.mark.parametrize(
    ("function", "subject"),
    [
        (lambda x: torch.nonzero(x > 0), "aten.nonzero.default"),
        (lambda x: x + torch.randn_like(x), "aten.randn_like.default"),
        (lambda x: torch.fft.rfft(x).abs(), "complex64"),
        (lambda x: nn.functional.dropout(x, 0.5, True), "aten.dropout.default"),
    ],
)
def test_preflight_refuses_with_line_and_way_out(function: Callable[..., Any], subject: str) -> None:
    found = refusals(Function(function), (torch.randn(3, 4),))
    assert subject in [f.subject for f in found]
    assert all(f.source and f.remedy and f.why for f in found)


def test_preflight_refuses_a_dimension_without_maximum() -> None:
    found = refusals(nn.Linear(4, 2), (torch.randn(3, 4),), ({0: Dim("n", min=1)},))
    assert [f.kind for f in found] == ["dim"]
    assert "max=" in str(found[0].remedy)


def test_preflight_passes_a_plain_network() -> None:
    assert refusals(cnn(), (torch.randn(2, 1, 8, 8),), ({0: Dim("b", min=1, max=64)},)) == []


def test_lower_refuses_what_the_preflight_refuses(tmp_path: Path) -> None:
    load = reloaded(nn.Linear(4, 2), (torch.randn(3, 4),), ({0: Dim("n", min=1)},))
    with pytest.raises(UnsupportedError, match="no maximum"):
        lowered(load, tmp_path)


@pytest.mark.slow
def test_whole_batch_range_runs_and_bytes_repeat(tmp_path: Path) -> None:
    load = reloaded(cnn(), (torch.randn(2, 1, 8, 8),), ({0: Dim("b", min=1, max=64)},))
    result, runner, signature, reference = lowered(load, tmp_path / "a")
    assert result.narrowed == ()
    assert result.coverage.fallback == {}
    assert any("max_pool2d" in op for op in result.nan_unsafe)
    assert runner.signature().inputs == signature.inputs
    for batch in (1, 15, 16, 64):
        x = torch.randn(batch, 1, 8, 8)
        got = runner.run({"input": x.numpy()})["output"]
        np.testing.assert_allclose(got, reference([x])[0].numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"1\.\.64"):
        runner.run({"input": np.zeros((65, 1, 8, 8), np.float32)})
    again, *_ = lowered(load, tmp_path / "b")
    first, second = (tmp_path / d / f for d, f in (("a", result.files[0]), ("b", again.files[0])))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_fp16_keeps_float_interface(tmp_path: Path) -> None:
    load = reloaded(cnn(), (torch.randn(2, 1, 8, 8),), ({0: Dim("b", min=1, max=64)},))
    _, runner, _, reference = lowered(load, tmp_path, "fp16")
    x = torch.randn(5, 1, 8, 8)
    got = runner.run({"input": x.numpy()})["output"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference([x])[0].numpy(), rtol=1e-2, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        torch.exp,
        torch.log,
        torch.sqrt,
        torch.rsqrt,
        lambda x: torch.maximum(x, -x),
        torch.sign,
        lambda x: x.max(1)[0],
        lambda x: x // (x * 0),
    ],
)
def test_nan_and_infinity_pass(function: Callable[..., Any], tmp_path: Path) -> None:
    x = torch.tensor([[float("nan"), float("inf"), 2.0, 0.0], [-0.0, -1.0, 0.5, -float("inf")]])
    _, runner, _, reference = lowered(reloaded(Function(function), (x,)), tmp_path)
    np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], reference([x])[0].numpy(), rtol=1e-5)


@pytest.mark.slow
def test_state_starts_at_its_saved_value_and_outputs_are_copies(tmp_path: Path) -> None:
    class Total(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.tensor([3.0, 4.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 1

    _, runner, _, _ = lowered(reloaded(Total(), (torch.ones(2),)), tmp_path)
    first = runner.run({"x": np.ones(2, np.float32)})["output"]
    second = runner.run({"x": np.ones(2, np.float32)})["output"]
    np.testing.assert_array_equal(first, [4.0, 5.0])
    np.testing.assert_array_equal(second, [5.0, 6.0])


@pytest.mark.slow
def test_a_call_of_no_rows_gives_no_rows(tmp_path: Path) -> None:
    """The runtime ends the process when an empty tensor has numpy's strides."""
    load = reloaded(Function(lambda x: (x.sum(0), x * 2)), (torch.randn(3, 4),), {"x": {0: Dim("n", min=0, max=8)}})
    _, runner, _, _ = lowered(load, tmp_path)
    total, twice = runner.run({"x": np.zeros((0, 4), np.float32)}).values()
    np.testing.assert_array_equal(total, np.zeros(4, np.float32))
    assert twice.shape == (0, 4)


def test_missing_kernel_is_named_with_its_line(tmp_path: Path) -> None:
    load = reloaded(Function(lambda x: torch.linalg.qr(x)[0]), (torch.randn(3, 3),))
    with pytest.raises(LoweringError) as caught:
        lowered(load, tmp_path)
    assert "qr" in str(caught.value)
    assert caught.value.remedy
    assert caught.value.source
