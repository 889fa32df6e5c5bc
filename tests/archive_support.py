"""What the tests of program archives share: programs, and copies of their archives with something changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from build.archive import load_program, save_program
from build.errors import EdgeportError, UntrustedInputError
from tests import fuzz


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


def save_all(folder: Path) -> dict[str, tuple[Path, Any]]:
    """Name -> (its file, the program in memory)."""
    found = {}
    for name in PROGRAMS:
        program = export(name)
        save_program(program, folder / f"{name}.pt2")
        found[name] = (folder / f"{name}.pt2", program)
    return found


def entries_of(path: Path) -> fuzz.Entries:
    return fuzz.read_zip(path.read_bytes())


def write(path: Path, entries: fuzz.Entries) -> Path:
    path.write_bytes(fuzz.write_zip(entries))
    return path


def edit(source: Path, target: Path, name: str, old: str, new: str) -> Path:
    """A copy with the first ``old`` of one text entry replaced."""
    entries = entries_of(source)
    key = f"program/{name}"
    assert old in entries[key].decode()
    entries[key] = entries[key].decode().replace(old, new, 1).encode()
    return write(target, entries)


def refused(path: Path, *words: str, kind: type[EdgeportError] = UntrustedInputError) -> str:
    with pytest.raises(kind) as caught:
        load_program(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    for word in words:
        assert word in message, message
    return message
