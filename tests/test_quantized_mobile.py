"""Quantised precisions of the two mobile targets, through their converters and runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from build.errors import InputError, LoweringError
from build.program import signature_of
from build.quantize.annotate import static_quantizer
from build.quantize.pt2e import quantize
from targets import executorch, litert
from targets.contract import Arithmetic
from targets.tflite import flatbuffer
from targets.tflite.check import check
from tests.mobile_network import calibration, images, saved, small
from tests.quantized_support import Quantized, quantized, save

#: precision -> least dB, largest share of fp32's bytes
EXPECTED = {"int8-static": (25, 0.45), "int8-dynamic": (30, 0.45), "int8-weight": (30, 0.45), "int4-weight": (12, 0.35)}


def build(
    target: Any, program: Path, folder: Path, precision: str, *, data: Any = None, keep: tuple[str, ...] = ()
) -> Quantized:
    """Lower and load; ``data``: the calibration, that of the small network unless given."""
    return quantized(target, program, folder, precision, keep=keep, calls=calibration() if data is None else data)


@pytest.fixture(scope="module", params=[executorch, litert], ids=["executorch", "litert"])
def target(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(small(), (images(2),), tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def fp32(target: Any, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    return build(target, program, tmp_path_factory.mktemp("fp32") / "a", "fp32")


def fallback(target: Any) -> set[str]:
    """What may run outside XNNPACK: it has no GELU of integers, which LiteRT's converter makes between two layers."""
    return {"GELU"} if target is litert else set()


def arithmetic(target: Any, precision: str) -> Arithmetic | None:
    """All layers of the small network in integers, but the depthwise one where values are ranged at run time."""
    if precision.endswith("-weight"):
        return None
    if precision == "int8-static":
        return Arithmetic(integers=4)
    return Arithmetic(integers=3, floats={"DEPTHWISE_CONV_2D": 1} if target is litert else {})


@pytest.mark.parametrize("precision", EXPECTED)
def test_precision_is_small_and_close_at_every_batch(
    target: Any, precision: str, program: Path, fp32: Quantized, tmp_path: Path
) -> None:
    least, share = EXPECTED[precision]
    made = build(target, program, tmp_path / "a", precision)
    assert min(made.snr([images(n, 10 + n)]) for n in (1, 7, 32)) > least
    assert made.size < share * fp32.size
    # The depthwise layer's few weights stay float where the values do: XNNPACK has no other kernel for it.
    depthwise = {"aten.convolution.default": 1} if target is executorch and precision != "int8-static" else {}
    assert made.lowered.unquantized == depthwise
    assert made.lowered.arithmetic == arithmetic(target, precision)
    assert made.lowered.narrowed == ()
    assert made.runner.signature().inputs == made.signature.inputs
    # Float values and small weights have XNNPACK kernels for some layers only.
    if precision == "int8-static" or (target is litert and precision != "int4-weight"):
        assert set(made.lowered.coverage.fallback) <= fallback(target)
    if precision == "int8-static":
        again = build(target, program, tmp_path / "b", precision)
        assert again.bytes() == made.bytes()


def test_quantised_program_is_lowered_as_it_is(target: Any, program: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.pt2"
    torch.export.save(quantize(torch.export.load(program), static_quantizer(), calibration()), own)
    loaded = torch.export.load(own)
    assert not [f for f in target.preflight(loaded, signature_of(loaded)) if f.verdict == "refused"]
    made = build(target, own, tmp_path / "a", "int8-static", data=[])
    (got,), (want,) = made.outputs([images(32, 9)])
    step = np.diff(np.unique(want)).min()
    assert np.abs(got - want).max() < 3.5 * step
    assert set(made.lowered.coverage.fallback) <= fallback(target)
    with pytest.raises(InputError, match="quantised already"):
        build(target, own, tmp_path / "b", "int8-weight")
    with pytest.raises(InputError, match="linear"):
        build(target, own, tmp_path / "c", "int8-static", keep=("linear",))


@pytest.mark.parametrize("precision", ["int8-static", "int8-dynamic", "int8-weight"])
@pytest.mark.slow
def test_kept_layer_is_float(target: Any, precision: str, program: Path, tmp_path: Path) -> None:
    plain = build(target, program, tmp_path / "a", precision)
    kept = build(target, program, tmp_path / "b", precision, keep=("linear",))
    # The kept layer's 32,768 weights are four bytes each again.
    assert kept.size > plain.size + 90_000
    assert kept.snr([images(32, 9)]) > plain.snr([images(32, 9)])
    # At int8-static what reads a kept value is float too; the GELU in between makes a value of its own.
    assert kept.lowered.unquantized == plain.lowered.unquantized


@pytest.mark.slow
def test_reader_of_a_kept_value(target: Any, program: Path, tmp_path: Path) -> None:
    made = build(target, program, tmp_path / "a", "int8-static", keep=("batch_norm",))
    # XNNPACK's partitioner has no convolution of float values and 8-bit weights; LiteRT keeps the weights small.
    assert made.lowered.unquantized == ({} if target is litert else {"aten.convolution.default": 1})
    assert made.snr([images(32, 9)]) > 25


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(500, 64), nn.Linear(64, 64)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.layer(self.words(ids))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8-static", "int8-weight"])
def test_embedding_is_stored_as_integers(target: Any, precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.arange(12).reshape(3, 4) * 40
    program = saved(Tables().eval(), (ids,), tmp_path)
    made = build(target, program, tmp_path / "a", precision, data=[{"ids": ids.numpy()}])
    assert made.size < 60_000
    assert made.snr([ids]) > 30
    assert made.lowered.unquantized == {}


class Pointwise(nn.Module):
    """1x1 convolutions, with a bias and without; the last one strides, which no linear layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 1), nn.Conv2d(32, 64, 1, bias=False)
        self.strided = nn.Conv2d(64, 8, 1, stride=2)

    def forward(self, image: torch.Tensor) -> Any:
        return self.strided(self.second(torch.relu(self.first(image))))


@pytest.mark.parametrize("precision", ["int8-weight", pytest.param("int4-weight", marks=pytest.mark.slow)])
def test_pointwise_convolution_is_a_linear_layer_of_the_delegate(precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = saved(Pointwise().eval(), (images(2),), tmp_path)
    made = build(executorch, program, tmp_path / "a", precision)
    assert made.lowered.coverage.fallback["aten.convolution.default"] == 1
    assert min(made.snr([images(n, 10 + n)]) for n in (1, 7, 32)) > 30


class Padded(nn.Module):
    """As mobile networks begin: the image itself is padded, a convolution strides over it, a depthwise one follows."""

    def __init__(self) -> None:
        super().__init__()
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))
        self.stem, self.depth = nn.Conv2d(3, 32, 3, 2), nn.Conv2d(32, 32, 3, 2, groups=32)
        self.last = nn.Conv2d(32, 16, 1)

    def forward(self, image: torch.Tensor) -> Any:
        values = nn.functional.relu6(self.stem(self.pad(image)))
        return self.last(nn.functional.relu6(self.depth(self.pad(values))))


def test_a_padded_image_is_ranged_at_run_time_in_the_delegate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = saved(Padded().eval(), (images(2),), tmp_path)
    made = build(executorch, program, tmp_path / "a", "int8-dynamic")
    assert made.lowered.coverage.fallback == {"aten.constant_pad_nd.default": 1}
    assert made.lowered.unquantized == {"aten.convolution.default": 1}
    assert min(made.snr([images(n, 10 + n)]) for n in (1, 7, 32)) > 30


class _Offset(nn.Module):
    """Values a thousand times their differences in between: one 8-bit step is wider than what they tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)
        with torch.no_grad():
            self.up.bias.fill_(1000.0)
            self.down.bias.copy_(-1000.0 * self.down.weight.sum(1))

    def forward(self, x: Any) -> Any:
        return self.down(self.up(x))


def test_what_integers_do_not_hold_is_not_the_lowerings_to_judge(target: Any, tmp_path: Path) -> None:
    """The graph is right and the values are lost, in PyTorch's own integers too: that is for the metric to say."""
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    program = saved(_Offset().eval(), (x,), tmp_path, dynamic=False)
    made = build(target, program, tmp_path / "a", "int8-static", data=[{"x": x.numpy()}])
    assert made.snr([x]) < 0


def test_another_programs_file_is_refused(program: Path, tmp_path: Path) -> None:
    """The same network with the signs of its last layer changed: neither it nor its integers compute this."""
    content = build(litert, program, tmp_path / "a", "int8-static").bytes()["model.tflite"]
    network = small()
    for parameter in network.head.parameters():
        parameter.data.neg_()
    other = torch.export.load(saved(network, (images(2),), tmp_path))
    signature = signature_of(other)
    sizes = dict.fromkeys(signature.dynamic_symbols, 5)
    integers = quantize(other, static_quantizer(), calibration())
    with pytest.raises(LoweringError, match="more noise than signal"):
        check(content, other, signature, [sizes], "int8-static", integers)


class _Product(nn.Module):
    """``[2, t, 16]`` -> ``[2, t, t]``; without bias, the second operand's range is symmetric for symmetric inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.matmul(self.left(x), self.right(x).transpose(-1, -2))


def test_a_symmetric_product_does_not_depend_on_the_first_call(tmp_path: Path) -> None:
    """XNNPACK keeps the scales of the first call's columns, where the file lets it; what it reads then is chance."""

    def both_signs(steps: int) -> dict[str, Any]:
        half = torch.randn(1, steps, 16, generator=torch.Generator().manual_seed(steps))
        return {"x": torch.cat([half, -half]).numpy()}

    torch.manual_seed(0)
    time = torch.export.Dim("time", min=1, max=128)
    program = save(_Product().eval(), (torch.randn(2, 5, 16),), tmp_path, ({1: time},))
    calls = [both_signs(n) for n in (5, 16, 64, 128)]
    made = quantized(litert, program, tmp_path / "parted", "int8-static", calls=calls)
    made.runner.run(both_signs(1))
    got, want = made.outputs([torch.from_numpy(both_signs(128)["x"])])
    noise = float(((got[0] - want[0]) ** 2).sum())
    assert 10 * np.log10(float((want[0] ** 2).sum()) / noise) > 20

    model = flatbuffer.read((made.folder / made.lowered.files[0]).read_bytes())
    (graph,) = model.subgraphs
    made_by = {int(t): flatbuffer.opcode_name(model, o) for o in graph.operators for t in o.outputs}
    (product,) = [o for o in graph.operators if flatbuffer.opcode_name(model, o) == "BATCH_MATMUL"]
    assert made_by[int(product.inputs[1])] == "MUL"
