"""The ORT Web target quantised: what is its own; what is alike on other targets stands in test_quantized_alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from build.archive import load_program
from build.program import call
from targets import ort_web
from tests.quantized_support import Quantized, quantized, save, small_program


def _weights(made: Quantized) -> int:
    """Bytes of the file that holds the weights."""
    return (made.folder / "model.onnx").stat().st_size


def test_saturation_does_not_reach_our_weights(tmp_path: Path) -> None:
    """Signed weights times unsigned values overflow 16 bits on CPUs without VNNI: ours are unsigned, whatever the CPU.

    The same network with ONNX Runtime's signed weights is no nearer to PyTorch on any CPU, and much farther on those.
    """
    import onnx
    from onnx import numpy_helper

    network = saturating_program(tmp_path)
    calls = [{"input": positive(16, seed).numpy()} for seed in range(4)]
    made = quantized(ort_web, network, tmp_path / "ours", "int8-static", calls=calls)
    model = onnx.load(tmp_path / "ours" / "model.onnx")
    stored = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[2] in stored:
            assert numpy_helper.to_array(stored[node.input[2]]).dtype in (np.uint8, np.int32)
    ours = made.snr([positive(16, 9)])
    assert ours > 30
    theirs = naive_snr(network, tmp_path / "theirs.onnx", calls, positive(16, 9))
    assert theirs < ours + 1


def naive_snr(program: Path, path: Path, calls: list[dict[str, Any]], inputs: Any) -> float:
    """Nearness of the artifact that ``quantize_static`` makes with signed weights per channel."""
    import onnxruntime
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    loaded = load_program(program)
    exported = torch.onnx.export(loaded, (), dynamo=True, verbose=False).model_proto
    name = exported.graph.input[0].name

    class Calls(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(calls)

        def get_next(self) -> Any:
            call = next(self.left, None)
            return None if call is None else {name: call["input"]}

    quantize_static(
        exported, path, Calls(), per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
    )
    got = onnxruntime.InferenceSession(path).run(None, {name: inputs.numpy()})[0]
    want = call(load_program(program))([inputs])[0].numpy()
    return 10 * float(np.log10((want**2).sum() / ((got - want) ** 2).sum()))


def positive(count: int, seed: int) -> Any:
    """``[count, 64]`` of numbers near their maximum, which fill the range of 8-bit values."""
    import torch

    return 0.7 + 0.3 * torch.rand(count, 64, generator=torch.Generator().manual_seed(seed))


def saturating_program(folder: Path) -> Path:
    """A linear layer whose weights are all near their channel's maximum: sums of two products are near theirs."""
    import torch

    torch.manual_seed(5)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    with torch.no_grad():
        for layer in (layers[0], layers[2]):
            layer.weight.copy_(
                (0.8 + 0.2 * torch.rand_like(layer.weight)) * torch.where(layer.weight > -0.03, 1.0, -1.0)
            )
    return save(layers, (positive(16, 1),), folder, ({0: torch.export.Dim("batch", min=1, max=16)},))


def test_the_files_have_no_traces_of_the_builder(tmp_path: Path) -> None:
    made = quantized(ort_web, small_program(tmp_path), tmp_path / "a", "int8-static")
    content = (made.folder / "model.onnx").read_bytes()
    assert b"edgeport-node" not in content
    assert str(tmp_path).encode() not in content
