"""A small network with a residual, a depthwise layer and a GELU between linear ones, and data for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim


class Small(nn.Module):
    """Image float32 [batch, 3, 8, 8] -> logits float32 [batch, 10]; 36,000 weights, nearly all in linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.wide = nn.Linear(128, 256)
        self.head = nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> Mapping[str, torch.Tensor]:
        y = torch.relu(self.norm(self.first(image)))
        y = nn.functional.max_pool2d(nn.functional.relu6(self.depth(y)) + y, 2)
        return {"logits": self.head(nn.functional.gelu(self.wide(y.flatten(1))))}


def small() -> nn.Module:
    torch.manual_seed(0)
    network = Small()
    network.norm.running_mean.uniform_(-0.2, 0.2)
    network.norm.running_var.uniform_(0.5, 2)
    return network.eval()


def saved(module: nn.Module, args: tuple[Any, ...], folder: Path, dynamic: bool = True) -> Path:
    """Export with a dynamic batch from 1 to 32, and save."""
    batch = Dim("batch", min=1, max=32)
    shapes = tuple({0: batch} for _ in args) if dynamic else None
    path = folder / f"program{len(list(folder.glob('*.pt2')))}.pt2"
    torch.export.save(torch.export.export(module, args, dynamic_shapes=shapes), path)
    return path


def images(count: int, seed: int = 1) -> torch.Tensor:
    return torch.rand((count, 3, 8, 8), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def calibration() -> list[dict[str, Any]]:
    return [{"image": images(16, seed).numpy()} for seed in range(2, 6)]
