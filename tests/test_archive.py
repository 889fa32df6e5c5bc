"""Programs from outside: damage and attacks are refused in one line, and saving is exact and reproducible."""

from __future__ import annotations

from typing import Any

import torch


class _Small(torch.nn.Module):
    """Dynamic batch, a shared and a transposed weight, a constant, and two views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(4, 3)
        self.b = torch.nn.Linear(4, 3)
        self.b.weight = self.a.weight
        self.t = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
        self.c = torch.arange(3.0)
        self.register_buffer("row", self.a.weight.detach()[1])
        self.register_buffer("wide", torch.ones(1).expand(3))

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.a(x) + self.b(x) * self.c + self.wide
        return {"h": h.reshape(x.shape[0] // 2, 2, 3), "s": self.row.sum() + self.t.sum() + k}


class _Branch(torch.nn.Module):
    """A conditional: graphs within the graph."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cond(x.sum() > 0, lambda v: v * 2.0, lambda v: v - 1.0, (x,))
        return y, x.reshape(-1)[: x.shape[1]]


class _Conv(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).mean((2, 3))


def _dim(name: str, low: int, high: int) -> Any:
    return torch.export.Dim(name, min=low, max=high)


PROGRAMS: dict[str, Any] = {
    "small": lambda: (_Small(), (torch.randn(8, 4), torch.tensor(3)), {"x": {0: 4 * _dim("n", 1, 8)}, "k": None}),
    "branch": lambda: (_Branch(), (torch.randn(4, 5),), {"x": {0: _dim("b", 2, 16), 1: _dim("t", 2, 64)}}),
    "conv": lambda: (_Conv().eval(), (torch.randn(2, 3, 8, 8),), None),
}


def export(name: str) -> Any:
    torch.manual_seed(0)
    module, args, shapes = PROGRAMS[name]()
    return torch.export.export(module, args, dynamic_shapes=shapes)
