"""The digits model trained for 8 bits: quantisation-aware training, and a program that brings its own quantisation.

It starts from the trained digits model with the batch norms folded into the convolutions, and trains on with fake
quantisation (Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference": straight-through gradients, weights symmetric per output channel, activations affine per tensor). What it
returns holds integer weights and the quantize and dequantize ops that PT2E leaves in a program, so every target takes
it as it is: nothing is calibrated again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import digits_cnn
from models.spec import ModelSpec
from models.weights_cache import cache_key, cached

if TYPE_CHECKING:
    import torch

_EPOCHS = 3
_BATCH = 64
_RATE = 3e-4
#: Smoothing of the observed ranges, as PyTorch's moving-average observers have it.
_MOMENTUM = 0.01
#: Values whose range is observed: the image, what each layer puts out.
_VALUES = ("image", "conv0", "conv1", "conv2", "logits")


def folded() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weight and bias of the three convolutions, batch norms folded in, and of the linear layer."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_weights

    network = digits_cnn.spec().factory()
    layers: Any = network.features
    pairs = []
    for conv, norm in ((layers[0], layers[1]), (layers[3], layers[4]), (layers[7], layers[8])):
        weight, bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        pairs.append((weight.detach().clone(), bias.detach().clone()))
    linear: Any = network.classifier
    pairs.append((linear.weight.detach().clone(), linear.bias.detach().clone()))
    assert all(isinstance(t, torch.Tensor) for pair in pairs for t in pair)
    return pairs


def _weight_scale(weight: torch.Tensor) -> torch.Tensor:
    """One scale per output channel: its largest magnitude is 127."""
    return (weight.detach().abs().flatten(1).amax(1) / 127).clamp(min=2**-20)


def _value_scale(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of an affine range that holds zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / 255, 2**-12)
    return scale, max(-128, min(127, round(-128 - low / scale)))


def _forward(layers: Any, image: torch.Tensor, value: Any) -> torch.Tensor:
    """The network; ``value(name, tensor)`` is told of every value that is quantised, and returns what goes on.

    Args:
        layers: weight and bias per layer, weights as they are to be used.
    """
    from torch.nn import functional as f

    x = value("image", image)
    for i in range(3):
        x = value(f"conv{i}", f.relu(f.conv2d(x, *layers[i], padding=1)))
        if i > 0:
            x = f.max_pool2d(x, 2)
    return value("logits", f.linear(x.flatten(1), *layers[3]))


def train() -> dict[str, torch.Tensor]:
    """Train on with fake quantisation.

    Returns:
        ``weightN``, ``biasN`` (float32) per layer and ``range_NAME`` (float32 [2]: low, high) per value.
    """
    import torch
    from torch.nn.functional import cross_entropy

    images, labels, _, _ = digits_cnn.load_data()
    ranges: dict[str, list[float]] = {}

    def value(name: str, x: torch.Tensor) -> torch.Tensor:
        seen = [float(x.detach().min()), float(x.detach().max())]
        old = ranges.setdefault(name, seen)
        ranges[name] = [o + _MOMENTUM * (s - o) for o, s in zip(old, seen, strict=True)]
        scale, zero = _value_scale(*ranges[name])
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127)

    def small(weight: torch.Tensor) -> torch.Tensor:
        scale = _weight_scale(weight)
        zeros = torch.zeros(len(scale), dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scale, zeros, 0, -127, 127)

    with digits_cnn.reproducible(), torch.enable_grad():
        layers = [(w.requires_grad_(), b.requires_grad_()) for w, b in folded()]
        optimizer = torch.optim.Adam([t for pair in layers for t in pair], lr=_RATE)
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(labels)).split(_BATCH):
                optimizer.zero_grad()
                logits = _forward([(small(w), b) for w, b in layers], images[batch], value)
                cross_entropy(logits, labels[batch]).backward()
                optimizer.step()
    found = {f"range_{name}": torch.tensor(pair) for name, pair in ranges.items()}
    for i, (weight, bias) in enumerate(layers):
        found |= {f"weight{i}": weight.detach(), f"bias{i}": bias.detach()}
    return found


def _key() -> str:
    import torch

    return cache_key(
        Path(__file__).read_text(encoding="utf-8"),
        Path(digits_cnn.__file__).read_text(encoding="utf-8"),
        *(f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "numpy", "scikit-learn")),
        f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    )


@functools.cache
def _network_class() -> Any:
    import torch
    import torch.ao.quantization.fx._decomposed  # registers the quantize and dequantize ops
    from torch import nn

    class DigitsQat(nn.Module):
        """``image`` float32 [batch, 1, 8, 8] -> logits float32 [batch, 10]; weights int8, values fake-quantised."""

        def __init__(self, trained: dict[str, torch.Tensor]) -> None:
            super().__init__()
            self.ops: Any = torch.ops.quantized_decomposed
            self.ranges = {n: _value_scale(*trained[f"range_{n}"].tolist()) for n in _VALUES}
            for i in range(4):
                weight = trained[f"weight{i}"]
                scale = _weight_scale(weight)
                zeros = torch.zeros(len(scale), dtype=torch.int64)
                small = self.ops.quantize_per_channel(weight, scale, zeros, 0, -127, 127, torch.int8)
                for name, tensor in (
                    ("weight", small),
                    ("scale", scale),
                    ("zero", zeros),
                    ("bias", trained[f"bias{i}"]),
                ):
                    self.register_buffer(f"{name}{i}", tensor)

        def weight(self, i: int) -> torch.Tensor:
            stored, scale, zeros = (getattr(self, f"{n}{i}") for n in ("weight", "scale", "zero"))
            return self.ops.dequantize_per_channel(stored, scale, zeros, 0, -127, 127, torch.int8)

        def value(self, name: str, x: torch.Tensor) -> torch.Tensor:
            scale, zero = self.ranges[name]
            small = self.ops.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)
            return self.ops.dequantize_per_tensor(small, scale, zero, -128, 127, torch.int8)

        def forward(self, image: torch.Tensor) -> Any:
            layers = [(self.weight(i), getattr(self, f"bias{i}")) for i in range(4)]
            return _forward(layers, image, self.value)

    return DigitsQat


def _factory() -> torch.nn.Module:
    network: torch.nn.Module = _network_class()(cached("digits_qat", _key(), train))
    return network.eval()


def spec() -> ModelSpec:
    """The digits model, quantised already: input ``image``, output ``logits``."""
    base = digits_cnn.spec()
    return ModelSpec(
        name="digits_qat",
        summary="the digits CNN after quantisation-aware training: a program that is quantised already",
        factory=_factory,
        example=base.example,
        dynamic_shapes=base.dynamic_shapes,
        preprocessing=base.preprocessing,
        output=base.output,
        calibration=tuple,
        evaluation=base.evaluation,
        metric=base.metric,
        sizes=base.sizes,
        output_names=base.output_names,
        licence=base.licence,
    )
