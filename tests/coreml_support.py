"""What the tests of the Core ML target share: modules from functions, lowering, comparing with the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from build.program import call, signature_of
from targets import coreml
from targets.contract import Lowered, LowerRequest, Runner


class Fn(nn.Module):
    """A module of one input from a function."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


class Fn2(nn.Module):
    """A module of two inputs from a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(self, x, y)


def export(module: nn.Module, *args: torch.Tensor, dynamic: Any = None) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(module.eval(), args, dynamic_shapes=dynamic)


def build(program: Any, folder: Path, precision: str = "fp32") -> tuple[Lowered, Runner]:
    folder.mkdir(exist_ok=True)
    signature = signature_of(program)
    lowered = coreml.lower(program, LowerRequest(model="m", signature=signature, precision=precision, directory=folder))
    return lowered, coreml.load(folder, lowered.files, signature)


def same(module: nn.Module, calls: list[tuple[torch.Tensor, ...]], folder: Path, dynamic: Any = None) -> Lowered:
    """Lower, run every call, compare with the program."""
    program = export(module, *calls[0], dynamic=dynamic)
    torch.export.save(program, folder / "p.pt2")
    signature = signature_of(program)
    reference = call(torch.export.load(folder / "p.pt2"))
    lowered, runner = build(torch.export.load(folder / "p.pt2"), folder / "out")
    assert runner.signature() == signature
    for tensors in calls:
        want = reference([t.clone() for t in tensors])
        got = runner.run({s.name: t.numpy() for s, t in zip(signature.inputs, tensors, strict=True)})
        assert list(got) == [s.name for s in signature.outputs]
        for spec, expected in zip(signature.outputs, want, strict=True):
            found = got[spec.name]
            assert str(found.dtype) == spec.dtype
            np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    return lowered


def refusals(program: Any) -> list[Any]:
    return [f for f in coreml.preflight(program, signature_of(program)) if f.verdict == "refused"]
