"""LiteRT end to end: converted, written, loaded into the interpreter, and compared with PyTorch at unseen sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from build.errors import InputError, LoweringError
from build.program import call, signature_of
from targets import litert
from targets.contract import DynamicDim, Lowered, LowerRequest, Runner, Signature
from targets.tflite import flatbuffer
from targets.tflite.nan import nan_unsafe
from tests.lowering_support import check, lowered, program_of

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class _Built:
    path: Path
    lowered: Lowered
    runner: Runner
    signature: Signature
    reference: Callable[[list[torch.Tensor]], list[torch.Tensor]]

    def compare(self, *tensors: torch.Tensor, tolerance: float = 1e-5) -> None:
        """Names, shapes, dtypes and values of one call against PyTorch."""
        feed = {s.name: t.numpy() for s, t in zip(self.signature.inputs, tensors, strict=True)}
        got = self.runner.run(feed)
        wanted = self.reference([t.clone() for t in tensors])
        assert list(got) == [s.name for s in self.signature.outputs]
        for value, want in zip(got.values(), wanted, strict=True):
            assert value.dtype == want.numpy().dtype
            torch.testing.assert_close(torch.from_numpy(value), want.detach(), rtol=tolerance, atol=tolerance)


def _build(
    folder: Path,
    module: torch.nn.Module,
    args: tuple[torch.Tensor, ...],
    shapes: Any = None,
    precision: str = "fp32",
) -> _Built:
    path = folder / "program.pt2"
    torch.export.save(torch.export.export(module.eval(), args, dynamic_shapes=shapes), path)
    program = torch.export.load(path)
    signature = signature_of(program)
    directory = folder / precision
    directory.mkdir(exist_ok=True)
    lowered = litert.lower(
        program, LowerRequest(model="m", signature=signature, precision=precision, directory=directory)
    )
    return _Built(
        path=directory / lowered.files[0],
        lowered=lowered,
        runner=litert.load(directory, lowered.files, signature),
        signature=signature,
        reference=call(torch.export.load(path)),
    )


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> Mapping[str, torch.Tensor]:
        x = F.max_pool2d(torch.relu(self.first(image)), 2)
        x = F.max_pool2d(torch.relu(self.second(x)), 2)
        return {"logits": self.head(x.flatten(1))}


BATCH = ({0: Dim("batch", min=1, max=64)},)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> _Built:
    return _build(tmp_path_factory.mktemp("digits"), _Net(), (torch.randn(2, 1, 8, 8),), BATCH)


@pytest.mark.parametrize("batch", [1, 2, 3, 33, 64])
def test_a_network_takes_every_batch_size(digits: _Built, batch: int) -> None:
    digits.compare(torch.randn(batch, 1, 8, 8))


def test_a_batch_outside_the_range_is_refused(digits: _Built) -> None:
    with pytest.raises(InputError, match=r"65, outside 1\.\.64"):
        digits.runner.run({"image": np.zeros((65, 1, 8, 8), np.float32)})


def test_the_file_declares_names_and_bounds_itself(digits: _Built) -> None:
    declared = digits.runner.signature()
    assert declared == digits.signature
    batch = declared.inputs[0].shape[0]
    assert isinstance(batch, DynamicDim)
    assert (batch.lo, batch.hi) == (1, 64)


def test_xnnpack_takes_the_convolutions(digits: _Built) -> None:
    assert digits.lowered.coverage.delegated >= 6
    assert "CONV_2D" not in digits.lowered.coverage.fallback


def test_ops_that_drop_nan_are_named(digits: _Built) -> None:
    assert any(line.startswith("aten.relu.default at test_litert_lower.py") for line in digits.lowered.nan_unsafe)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_infinity_and_nan_pass_logarithms_roots_bounds_and_powers(precision: str, tmp_path: Path) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([-inf, inf, nan, 0.0, -0.0, 1.0, -1.0, 1e30, 1e-30, 88.0] * 8)

    def hard(v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logs = (torch.log(v), torch.log2(v), torch.log10(v), torch.log1p(v), torch.logit(v))
        tested = torch.nan_to_num(torch.log(v), nan=7.0, posinf=1.0), torch.isnan(torch.log(v))
        bounds = torch.minimum(v, torch.tensor(inf)), torch.maximum(torch.tensor(-inf), v)
        return *logs, *tested, *bounds, torch.rsqrt(v), v**3, v**5

    made = lowered(litert, program_of(hard, (x,), tmp_path), tmp_path / "a", precision)
    check(made, [[x], [x.flip(0)]], 1e-4)


def test_ops_that_change_nan_or_infinity_are_named(tmp_path: Path) -> None:
    def change(v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.exp(v), torch.softmax(v, 0), v * 0.0, v * 2.0

    program = torch.export.load(program_of(change, (torch.randn(4),), tmp_path))
    ops = [line.split(" at ")[0] for line in nan_unsafe(program)]
    assert ops == ["aten.exp.default", "aten.softmax.int", "aten.mul.Tensor"]


def test_weights_lie_aligned_in_the_file(digits: _Built) -> None:
    content = digits.path.read_bytes()
    weights = [flatbuffer.buffer_bytes(b) for b in flatbuffer.read(content).buffers]
    large = [w for w in weights if len(w) > 256]
    assert large
    assert all(content.index(w) % 16 == 0 for w in large)


def test_the_same_program_gives_the_same_bytes(digits: _Built, tmp_path: Path) -> None:
    again = _build(tmp_path, _Net(), (torch.randn(2, 1, 8, 8),), BATCH)
    assert again.path.read_bytes() == digits.path.read_bytes()


def test_half_precision_weights_keep_float_inputs(digits: _Built, tmp_path: Path) -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(x))

    shapes = ({0: Dim("batch", min=1, max=8)},)
    full = _build(tmp_path, Wide(), (torch.randn(2, 256),), shapes)
    half = _build(tmp_path, Wide(), (torch.randn(2, 256),), shapes, precision="fp16")
    assert half.path.stat().st_size < 0.6 * full.path.stat().st_size
    half.compare(torch.randn(3, 256), tolerance=5e-3)


class _Attention(torch.nn.Module):
    """Two symbols, a position table, a causal mask, heads: reshapes with two sizes chosen at run time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 16)
        self.places = torch.nn.Parameter(torch.randn(32, 16))
        self.mix = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, steps = ids.shape
        x = self.words(ids) + self.places[:steps]
        q, k, v = (t.view(batch, steps, 4, 4).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch * steps, 16)).reshape(batch, steps, 4)


def test_two_symbols_in_one_reshape(tmp_path: Path) -> None:
    shapes = ({0: Dim("batch", min=1, max=16), 1: Dim("steps", min=2, max=32)},)
    built = _build(tmp_path, _Attention(), (torch.randint(0, 50, (2, 6)),), shapes)
    assert len(built.lowered.entry_points) == 1
    for batch, steps in ((1, 2), (16, 32), (3, 9), (1, 32), (16, 2)):
        built.compare(torch.randint(0, 50, (batch, steps)))


class _Windows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.adaptive_avg_pool2d(x, (3, 3))


def test_a_graph_that_depends_on_the_size_becomes_signatures(tmp_path: Path) -> None:
    shapes = ({2: Dim("height", min=4, max=7)},)
    built = _build(tmp_path, _Windows(), (torch.randn(1, 2, 5, 6),), shapes)
    assert [dict(e.sizes).popitem()[1] for e in built.lowered.entry_points] == [4, 5, 6, 7]
    for height in (4, 5, 6, 7):
        built.compare(torch.randn(1, 2, height, 6))


def test_a_graph_that_depends_on_too_many_sizes_is_a_clear_error(tmp_path: Path) -> None:
    shapes = ({2: Dim("height", min=4, max=70)},)
    with pytest.raises(LoweringError, match="dynamic range") as caught:
        _build(tmp_path, _Windows(), (torch.randn(1, 2, 5, 6),), shapes)
    assert caught.value.op
    assert "16 sizes" in str(caught.value.remedy)


def test_integers_beyond_32_bits_stay_right(tmp_path: Path) -> None:
    class Products(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x * 3, x + 1, x * x, x.sum()

    built = _build(tmp_path, Products(), (torch.tensor([1, 2_000_000_000, 3_000_000_000, -7]),))
    built.compare(torch.tensor([5, -3_000_000_000, 2_147_483_648, 0]))


def test_tensors_made_in_forward_are_outputs_like_any_other(tmp_path: Path) -> None:
    class Made(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            offsets = torch.tensor([1.0, 2.0, 3.0])
            return x + offsets, offsets, torch.tensor(3), torch.tensor([[1, 2], [3, 4]]), torch.zeros(2, 3)

    built = _build(tmp_path, Made(), (torch.randn(5, 3),), BATCH)
    built.compare(torch.randn(7, 3))


def test_a_converter_failure_names_op_source_and_way_out(tmp_path: Path) -> None:
    class Unfit(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i1(x)

    with pytest.raises(LoweringError) as caught:
        _build(tmp_path, Unfit(), (torch.rand(3),))
    assert "i1" in str(caught.value.op)
    assert "test_litert_lower.py" in str(caught.value.source)
    assert caught.value.remedy


def test_constants_of_one_shape_keep_their_own_values() -> None:
    """The converter's cache of constants goes by address; a freed copy's address may come again."""
    from litert_torch.backend import inline_consts

    from targets.tflite.convert import _constants_kept

    fingerprint = inline_consts._ConstantFingerprint
    with _constants_kept():
        seen = {fingerprint.from_tensor(torch.randn(64, 32).t().contiguous()) for _ in range(200)}
    assert len(seen) == 200
    assert "kept" not in fingerprint.from_tensor.__code__.co_freevars
