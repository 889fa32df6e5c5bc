"""The ORT Web target quantised: what is its own; what is alike on other targets stands in test_quantized_alike."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from build.archive import load_program
from build.errors import UnsupportedError
from build.program import call
from targets import ort_web
from targets.checks import require_integers
from targets.contract import Arithmetic
from tests.quantized_support import Quantized, quantized, save, small_program


def _weights(made: Quantized) -> int:
    """Bytes of the file that holds the weights."""
    return (made.folder / "model.onnx").stat().st_size


def exact_products() -> bool:
    """Whether this CPU adds products of unsigned by signed bytes in 32 bits: x86 does with VNNI alone, Arm always."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("what this CPU can do is not to be read")
    return bool({"avx512_vnni", "avx_vnni"} & set(info.read_text().split()))


@pytest.mark.parametrize("kind", ["Gemm", "MatMul", "Conv"])
@pytest.mark.parametrize("precision", ["int8-static", "int8-dynamic"])
def test_saturation_does_not_reach_our_weights(tmp_path: Path, kind: str, precision: str) -> None:
    """Signed weights times unsigned values overflow 16 bits on CPUs without VNNI: ours are unsigned, whatever the CPU.

    The same network with ONNX Runtime's signed weights of full range is as near to PyTorch with VNNI, and far off
    without.
    """
    import onnx
    from onnx import numpy_helper

    network, inputs = saturating_program(kind, tmp_path), positive(kind, 9)
    calls = [{"x": positive(kind, seed).numpy()} for seed in range(4)]
    made = quantized(ort_web, network, tmp_path / "ours", precision, calls=calls)
    model = onnx.load(tmp_path / "ours" / "model.onnx")
    stored = [numpy_helper.to_array(t) for t in model.graph.initializer]
    assert not [t for t in stored if t.dtype == np.int8]
    assert sum(t.dtype == np.uint8 and t.ndim > 1 for t in stored) == 2
    ours = made.snr([inputs])
    assert ours > 30
    if (kind, precision) == ("Conv", "int8-dynamic"):
        return  # ONNX Runtime has no ConvInteger of signed weights
    theirs = naive_snr(network, tmp_path / "theirs.onnx", precision, calls, inputs)
    if exact_products():
        assert abs(theirs - ours) < 6
    else:
        assert theirs < ours - 10


def test_the_saturating_network_is_one(tmp_path: Path) -> None:
    """Its first layer in 16-bit sums of two, as CPUs without VNNI have them, is not PyTorch's: on any machine."""
    x = positive("Gemm", 9).numpy()
    weight = next(v for n, v in load_program(saturating_program("Gemm", tmp_path)).state_dict.items() if "0.w" in n)
    steps = np.rint(x / x.max() * 255).astype(np.int64)
    rows = weight.detach().numpy()
    bytes_ = np.rint(rows / np.abs(rows).max(1, keepdims=True) * 127).astype(np.int64)
    products = steps[:, None, :] * bytes_[None]
    right = products.sum(-1)
    pairs = products.reshape(*products.shape[:2], -1, 2).sum(-1)
    wrong = np.clip(pairs, -(2**15), 2**15 - 1).sum(-1)
    assert 10 * np.log10((right**2).sum() / ((wrong - right) ** 2).sum()) < 15


def naive_snr(program: Path, path: Path, precision: str, calls: list[dict[str, Any]], inputs: Any) -> float:
    """Nearness of the artifact that ONNX Runtime makes with signed weights per channel and no reduced range."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

    loaded = load_program(program)
    exported = torch.onnx.export(loaded, (), dynamo=True, verbose=False).model_proto
    name = exported.graph.input[0].name

    class Calls(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(calls)

        def get_next(self) -> Any:
            call = next(self.left, None)
            return None if call is None else {name: call["x"]}

    weights = {"per_channel": True, "reduce_range": False, "weight_type": QuantType.QInt8}
    if precision == "int8-static":
        quantize_static(exported, path, Calls(), activation_type=QuantType.QUInt8, **weights)
    else:
        quantize_dynamic(exported, path, **weights)
    got = onnxruntime.InferenceSession(path).run(None, {name: inputs.numpy()})[0]
    want = call(load_program(program))([inputs])[0].numpy()
    return 10 * float(np.log10((want**2).sum() / ((got - want) ** 2).sum()))


def positive(kind: str, seed: int) -> Any:
    """64 channels of numbers near their maximum, which fill the range of 8-bit values."""
    shape = {"Gemm": (16, 64), "MatMul": (2, 8, 64), "Conv": (2, 64, 4, 4)}[kind]
    return 0.7 + 0.3 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def saturating_program(kind: str, folder: Path) -> Path:
    """Layers whose weights are all near their channel's maximum: sums of two products are near theirs."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = ((64, 32), (32, 8))
            make: Any = (lambda i, o: torch.nn.Conv2d(i, o, 1)) if kind == "Conv" else torch.nn.Linear
            self.layers = torch.nn.Sequential(make(*sizes[0]), torch.nn.ReLU(), make(*sizes[1]))

        def forward(self, x: Any) -> Any:
            return self.layers(x)

    torch.manual_seed(5)
    network: Any = Layers().eval()
    with torch.no_grad():
        for layer in (network.layers[0], network.layers[2]):
            signs = torch.where(layer.weight > -0.03, 1.0, -1.0)
            layer.weight.copy_((0.8 + 0.2 * torch.rand_like(layer.weight)) * signs)
    return save(network, (positive(kind, 1),), folder)


class _Recurrent(torch.nn.Module):
    def __init__(self, *, head: bool) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 4) if head else torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0])


@pytest.mark.parametrize("precision", ["int8-static", "int8-dynamic"])
@pytest.mark.parametrize("head", [True, False])
def test_a_layer_without_integer_kernels_is_told(tmp_path: Path, precision: str, head: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    program = save(_Recurrent(head=head).eval(), (x,), tmp_path)
    made = quantized(ort_web, program, tmp_path / "a", precision, calls=[{"x": x.numpy()}]).lowered
    assert made.arithmetic == Arithmetic(integers=int(head), floats={"LSTM": 1})
    assert not made.unquantized
    if head:
        require_integers(made, precision)
        return
    with pytest.raises(
        UnsupportedError, match=rf"{precision} promises .* LSTM \(1\) compute in floating point"
    ) as told:
        require_integers(made, precision)
    assert "int8-weight" in (told.value.remedy or "")


def test_small_weights_promise_no_integer_arithmetic(tmp_path: Path) -> None:
    program = save(_Recurrent(head=False).eval(), (torch.randn(2, 5, 8),), tmp_path)
    made = quantized(ort_web, program, tmp_path / "a", "int8-weight").lowered
    assert made.arithmetic is None
    require_integers(made, "int8-weight")


def test_the_files_have_no_traces_of_the_builder(tmp_path: Path) -> None:
    made = quantized(ort_web, small_program(tmp_path), tmp_path / "a", "int8-static")
    content = (made.folder / "model.onnx").read_bytes()
    assert b"edgeport-node" not in content
    assert str(tmp_path).encode() not in content
