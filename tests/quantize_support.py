"""A small network of every kind of layer, its calibration, and artifacts of it at quantised precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim

from build.program import call, signature_of
from targets.contract import Lowered, LowerRequest, Runner, Signature
from targets.precisions import PRECISIONS


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


@dataclass(frozen=True, kw_only=True)
class Built:
    """An artifact, its runner, and the program's own outputs to compare with."""

    path: Path
    lowered: Lowered
    runner: Runner
    signature: Signature
    reference: Callable[[list[Any]], list[Any]]

    def outputs(self, *tensors: torch.Tensor) -> tuple[Any, Any]:
        """The first output of the artifact and of the program."""
        names = [s.name for s in self.signature.inputs]
        got = self.runner.run({n: t.numpy() for n, t in zip(names, tensors, strict=True)})
        assert list(got) == [s.name for s in self.signature.outputs]
        want = self.reference([t.clone() for t in tensors])[0].numpy()
        first = got[self.signature.outputs[0].name]
        assert first.shape == want.shape
        assert first.dtype == want.dtype
        return first, want

    def decibels(self, *tensors: torch.Tensor) -> float:
        """Signal-to-noise ratio of the first output."""
        got, want = self.outputs(*tensors)
        return float(10 * np.log10(np.square(want).sum() / max(np.square(want - got).sum(), 1e-30)))


def build(
    target: Any,
    program: Path,
    folder: Path,
    precision: str,
    *,
    data: list[dict[str, Any]] | None = None,
    keep: tuple[str, ...] = (),
) -> Built:
    """Lower a saved program and load the artifact. ``data``: the calibration; that of ``Small`` unless given."""
    folder.mkdir(parents=True, exist_ok=True)
    signature = signature_of(torch.export.load(program))
    request = LowerRequest(
        model="small",
        signature=signature,
        precision=precision,
        directory=folder,
        # As the pipeline does: a precision whose ranges are not calibrated sees no data.
        calibration=(calibration() if data is None else data) if PRECISIONS[precision].calibrated else (),
        keep_float=keep,
    )
    lowered = target.lower(torch.export.load(program), request)
    return Built(
        path=folder / lowered.files[0],
        lowered=lowered,
        runner=target.load(folder, lowered.files, signature),
        signature=signature,
        reference=call(torch.export.load(program)),
    )
