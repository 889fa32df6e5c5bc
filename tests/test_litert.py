"""LiteRT without its converter: expressions, sizes, pre-flight, declarations, input checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
import torch

from build.errors import InputError, UnsupportedError
from build.program import signature_of
from targets import litert
from targets.contract import DynamicDim, Finding, LowerRequest, Signature, TensorSpec
from targets.tflite import flatbuffer
from targets.tflite.check import difference
from targets.tflite.expressions import Fitter, evaluate
from targets.tflite.lowering import choose_points
from targets.tflite.runner import check_inputs

B, T = sympy.symbols("b t")
POINTS = [{"b": 5, "t": 7}, {"b": 11, "t": 7}, {"b": 5, "t": 13}, {"b": 11, "t": 13}]


@pytest.mark.parametrize(
    "expr",
    [B, T, 3 * B, B * T, 8 * B * T, T - 1, 2 * T + 5, B * T + 1, B + T, 3 * B - T],
    ids=str,
)
def test_expressions_are_recovered_from_their_values(expr: Any) -> None:
    fitted = Fitter(POINTS, [B, T, B * T]).fit([evaluate(expr, p) for p in POINTS])
    for sizes in ({"b": 1, "t": 2}, {"b": 64, "t": 100}, {"b": 3, "t": 1}):
        assert evaluate(fitted, sizes) == evaluate(expr, sizes)


def test_equal_values_are_a_number_and_unknown_ones_are_nothing() -> None:
    fitter = Fitter(POINTS, [B, T, B * T])
    assert fitter.fit([4, 4, 4, 4]) == 4
    assert fitter.fit([5, 9, 31, 2]) is None


def _signature(*dims: Any, dtype: str = "float32") -> Signature:
    spec = TensorSpec(name="x", dtype=dtype, shape=tuple(dims))
    return Signature(inputs=(spec,), outputs=(TensorSpec(name="output", dtype=dtype, shape=tuple(dims)),))


def _dim(symbol: str, lo: int, hi: int | None, scale: int = 1) -> DynamicDim:
    return DynamicDim(symbol=symbol, lo=lo, hi=hi, scale=scale)


@pytest.mark.parametrize(("lo", "hi"), [(1, 64), (2, 3), (1, 2), (100, 4000), (1, None), (4, 12)])
def test_points_lie_in_the_range_and_differ(lo: int, hi: int | None) -> None:
    points = choose_points(_signature(_dim("b", lo, hi), 5, 8))
    sizes = [p["b"] for p in points]
    assert len(set(sizes)) == 2
    assert all(lo <= s and (hi is None or s <= hi) for s in sizes)


def test_points_avoid_fixed_sizes_and_keep_symbols_apart() -> None:
    points = choose_points(_signature(_dim("b", 1, 64), _dim("t", 2, 128), 5, 11))
    assert len(points) == 4
    assert not {5, 11} & {v for p in points for v in p.values()}
    assert all(p["b"] != p["t"] for p in points)


def test_a_range_of_one_size_is_converted_once() -> None:
    assert choose_points(_signature(_dim("b", 4, 4), 8)) == [{"b": 4}]


def test_the_declared_signature_survives_its_json() -> None:
    signature = _signature(DynamicDim(symbol="n", lo=8, hi=64, scale=8), 3, _dim("t", 1, None))
    assert flatbuffer.signature_from_json(flatbuffer.signature_to_json(signature)) == signature


def test_sizes_are_read_off_the_inputs() -> None:
    signature = _signature(DynamicDim(symbol="n", lo=8, hi=64, scale=8), 3)
    assert check_inputs(signature, {"x": np.zeros((24, 3), np.float32)}) == {"n": 3}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((12, 3), np.float32), "steps of 8"),
        (np.zeros((72, 3), np.float32), "outside 8..64"),
        (np.zeros((8, 4), np.float32), "takes 3"),
        (np.zeros((8, 3), np.float64), "float64"),
        (np.zeros((8,), np.float32), "rank 2"),
    ],
)
def test_inputs_that_the_program_does_not_take_are_refused(value: Any, told: str) -> None:
    signature = _signature(DynamicDim(symbol="n", lo=8, hi=64, scale=8), 3)
    with pytest.raises(InputError, match=told):
        check_inputs(signature, {"x": value})


def test_one_symbol_has_one_size() -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=(_dim("b", 1, 8), _dim("b", 1, 8)))
    with pytest.raises(InputError, match="but 'b' is 3"):
        check_inputs(Signature(inputs=(spec,), outputs=()), {"x": np.zeros((3, 4), np.float32)})


class _Counter(torch.nn.Module):
    def __init__(self, *, used: bool) -> None:
        super().__init__()
        self.used = used
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls if self.used else x * 2


class _Random(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class _Wide(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.double() * 1e-10 + 1).float()


class _Fourier(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


class _Picking(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()


def _refused(module: torch.nn.Module) -> list[Finding]:
    program = torch.export.export(module, (torch.randn(4),))
    return [f for f in litert.preflight(program, signature_of(program)) if f.verdict == "refused"]


@pytest.mark.parametrize(
    ("module", "subject", "told"),
    [
        (_Counter(used=True), "buffer 'calls'", "next call"),
        (_Random(), "aten.randn_like.default", "random"),
        (_Wide(), "aten.", "float64"),
        (_Fourier(), "aten.", "complex"),
        (_Picking(), "aten.", "depends on values"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, torch.nn.Module) else None,
)
def test_preflight_refuses_with_source_and_way_out(module: torch.nn.Module, subject: str, told: str) -> None:
    findings = _refused(module)
    assert findings, "nothing was refused"
    first = findings[0]
    assert subject in first.subject
    assert told in first.why
    assert first.remedy
    assert "test_litert.py" in str(first.source)


def test_state_that_no_output_reads_is_no_obstacle() -> None:
    assert _refused(_Counter(used=False)) == []


def test_lower_refuses_what_preflight_refuses(tmp_path: Any) -> None:
    program = torch.export.export(_Random(), (torch.randn(4),))
    request = LowerRequest(model="m", signature=signature_of(program), precision="fp32", directory=tmp_path)
    with pytest.raises(UnsupportedError, match="random") as caught:
        litert.lower(program, request)
    assert caught.value.op == "aten.randn_like.default"
    assert not list(tmp_path.iterdir())


def test_a_quantised_file_is_compared_by_its_noise() -> None:
    """Elements may be off by half of the largest; a result that has nothing to do with the program's may not pass."""
    rng = np.random.default_rng(3)
    want = rng.normal(size=(16, 64)).astype(np.float32)
    noisy = (want + 0.5 * rng.normal(size=want.shape)).astype(np.float32)
    assert difference(noisy, want, None) == ""
    assert "off by" in difference(noisy, want, 0.05)
    for wrong in (want[::-1], np.roll(want, 1, axis=1), -want, 2.5 * want):
        assert "more noise than signal" in difference(np.ascontiguousarray(wrong, np.float32), want, None)
