"""A planted fault: the digits CNN with one layer whose channels differ 1,000 times in scale, and the next undoing it.

In floating point it computes what the digits model computes. One 8-bit scale for all channels of that layer's values
cannot hold the small ones: calibrated int8 collapses, on every target. The layer is ``spread``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from models import digits_cnn, digits_qat
from models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

#: The node of the program whose value collapses.
CULPRIT = "conv2d_1"
_TIMES = 1000.0


def _factory() -> torch.nn.Module:
    import torch
    from torch import nn

    pairs: Any = digits_qat.folded()

    class Planted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 16, 3, padding=1)
            self.spread = nn.Conv2d(16, 32, 3, padding=1)
            self.undo = nn.Conv2d(32, 32, 3, padding=1)
            self.classifier = nn.Linear(128, 10)

        def forward(self, image: torch.Tensor) -> Any:
            x = torch.relu(self.first(image))
            x = torch.relu(self.spread(x))
            x = nn.functional.max_pool2d(x, 2)
            x = torch.relu(self.undo(x))
            return self.classifier(nn.functional.max_pool2d(x, 2).flatten(1))

    network = Planted()
    scale = torch.ones(32)
    scale[::4] = _TIMES
    with torch.no_grad():
        for layer, (weight, bias) in zip(network.children(), pairs, strict=True):
            layer.weight.copy_(weight)  # type: ignore[union-attr, operator]
            layer.bias.copy_(bias)  # type: ignore[union-attr, operator]
        network.spread.weight *= scale[:, None, None, None]
        network.spread.bias *= scale
        network.undo.weight /= scale[None, :, None, None]
    return network.eval()


def spec() -> ModelSpec:
    """The planted model with the digits model's data."""
    return dataclasses.replace(
        digits_cnn.spec(), name="planted", summary="a planted fault", factory=_factory, budgets=()
    )
