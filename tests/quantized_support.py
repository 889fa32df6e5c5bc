"""Small programs for the tests of quantised precisions, and how near an artifact comes to PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build.archive import load_program
from build.program import call, signature_of
from targets.contract import Lowered, LowerRequest, Runner, Signature


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A quantised artifact with what is needed to judge it."""

    lowered: Lowered
    runner: Runner
    signature: Signature
    program: Path
    folder: Path

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file())

    def bytes(self) -> dict[str, bytes]:
        """Relative path -> content."""
        return {str(f.relative_to(self.folder)): f.read_bytes() for f in self.folder.rglob("*") if f.is_file()}

    def outputs(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What the artifact gives and what the program gives in PyTorch."""
        names = [s.name for s in self.signature.inputs]
        got = self.runner.run({n: t.numpy() for n, t in zip(names, inputs, strict=True)})
        want = call(load_program(self.program))([t.clone() for t in inputs])
        return [got[s.name] for s in self.signature.outputs], [w.numpy() for w in want]

    def snr(self, inputs: Sequence[Any]) -> float:
        """Signal to noise of the first output, in dB."""
        got, want = self.outputs(inputs)
        noise = float(((got[0].astype(np.float64) - want[0]) ** 2).sum())
        return 10 * float(np.log10((want[0].astype(np.float64) ** 2).sum() / max(noise, 1e-30)))


def small_network(outlier: float = 1.0) -> Any:
    """Three convolutions (one depthwise, one before a batch norm), two linear layers; ``[n, 3, 8, 8]`` -> ``[n, 5]``.

    ``outlier``: factor on the weights of one output channel of the second convolution.
    """
    import torch
    from torch import nn

    torch.manual_seed(3)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 5),
    ).eval()
    with torch.no_grad():
        network[3].weight[0] *= outlier
    return network


def save(model: Any, args: tuple[Any, ...], folder: Path, shapes: Any = None) -> Path:
    """Export a module to a ``.pt2`` file."""
    import torch

    path = folder / f"program{len(list(folder.glob('*.pt2')))}.pt2"
    torch.export.save(torch.export.export(model, args, dynamic_shapes=shapes), path)
    return path


def small_program(folder: Path, **options: Any) -> Path:
    """``small_network`` for 1 to 16 images at once."""
    import torch

    batch = torch.export.Dim("batch", min=1, max=16)
    return save(small_network(**options), (images(4),), folder, ({0: batch},))


def images(count: int, seed: int = 0) -> Any:
    """``[count, 3, 8, 8]`` of standard normal numbers."""
    import torch

    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def calibration() -> list[Mapping[str, Any]]:
    """Calls of several sizes."""
    return [{"input": images(n, seed=100 + i).numpy()} for i, n in enumerate((4, 8, 1, 16))]


def quantized(
    target: Any,
    program: Path,
    folder: Path,
    precision: str,
    *,
    keep: tuple[str, ...] = (),
    calls: Sequence[Mapping[str, Any]] | None = None,
) -> Quantized:
    """Lower a saved program at a quantised precision and load the artifact."""
    folder.mkdir()
    signature = signature_of(load_program(program))
    request = LowerRequest(
        model="model",
        signature=signature,
        precision=precision,
        directory=folder,
        calibration=(calibration() if calls is None else calls) if precision == "int8-static" else (),
        keep_float=keep,
    )
    lowered = target.lower(load_program(program), request)
    return Quantized(
        lowered=lowered,
        runner=target.load(folder, lowered.files, signature),
        signature=signature,
        program=program,
        folder=folder,
    )


def quantized_program(program: Path, folder: Path, *, weight_steps: int = 127) -> Path:
    """The program with PT2E's quantize and dequantize ops, as a user would bring it.

    ``weight_steps``: weights are integers from minus this number to this number.
    """
    import torch
    from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer

    weights = QuantizationSpec(
        dtype=torch.int8,
        quant_min=-weight_steps,
        quant_max=weight_steps,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
        observer_or_fake_quant_ctr=PerChannelMinMaxObserver,
    )
    values = QuantizationSpec(
        dtype=torch.int8,
        quant_min=-128,
        quant_max=127,
        qscheme=torch.per_tensor_affine,
        observer_or_fake_quant_ctr=MinMaxObserver,
    )

    class Layers(Quantizer):
        def annotate(self, model: Any) -> Any:
            for node in model.graph.nodes:
                if str(node.target) in ("aten.conv2d.default", "aten.linear.default"):
                    node.meta["quantization_annotation"] = QuantizationAnnotation(
                        input_qspec_map={node.args[0]: values, node.args[1]: weights},
                        output_qspec=values,
                        _annotated=True,
                    )
            return model

        def validate(self, model: Any) -> None:
            """Nothing to check."""

    prepared = prepare_pt2e(torch.export.load(program).module(check_guards=False), Layers())
    for inputs in calibration():
        prepared(torch.from_numpy(inputs["input"]))
    batch = torch.export.Dim("batch", min=1, max=16)
    return save(convert_pt2e(prepared), (images(16),), folder, ({0: batch},))
