"""What the tests of capturing share: a small network with a dynamic batch, and a job that captures it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from build.calls import Call, write_calls


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.relu(self.fc(x)))


BATCH = Dim("batch", min=1, max=64)


def save(program: Any, path: Path) -> Path:
    torch.export.save(program, path)
    return path


def program_source(path: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "program", "name": path.stem, "key": "k", "path": str(path), "data": None, **more}


def labelled(folder: Path, labels: list[int | None], outputs: int = 3, fill: float = 0.5) -> dict[str, Any]:
    module = nn.Linear(4, outputs).eval()
    path = save(torch.export.export(module, (torch.randn(1, 4),)), folder / "p.pt2")
    calls = [Call(id=str(i), inputs={"input": torch.full((1, 4), fill)}, label=x) for i, x in enumerate(labels)]
    write_calls(folder / "d.safetensors", calls)
    (folder / "out").mkdir()
    return program_source(path, data=str(folder / "d.safetensors"))
