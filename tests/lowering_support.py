"""Export a small module or function, lower it to a target, and compare the artifact with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build.program import call, signature_of
from targets.contract import Lowered, LowerRequest, Runner, Signature


@dataclass(frozen=True, kw_only=True)
class Made:
    """An artifact with its runner and the program's signature and reference."""

    lowered: Lowered
    runner: Runner
    signature: Signature
    reference: Callable[[list[Any]], list[Any]]


def program_of(model: Any, args: tuple[Any, ...], folder: Path, shapes: Any = None) -> Path:
    """Export a module, or a function of tensors, to a ``.pt2`` file."""
    import torch

    class Function(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return model(*tensors)

    module = model
    if not isinstance(model, torch.nn.Module):
        module = Function()
        shapes = None if shapes is None else (shapes,)
    path = folder / f"program{len(list(folder.glob('*.pt2')))}.pt2"
    torch.export.save(torch.export.export(module, args, dynamic_shapes=shapes), path)
    return path


def lowered(target: Any, program: Path, folder: Path, precision: str = "fp32") -> Made:
    """Lower a saved program and load the artifact."""
    import torch

    folder.mkdir()
    signature = signature_of(torch.export.load(program))
    request = LowerRequest(model="model", signature=signature, precision=precision, directory=folder)
    made = target.lower(torch.export.load(program), request)
    return Made(
        lowered=made,
        runner=target.load(folder, made.files, signature),
        signature=signature,
        reference=call(torch.export.load(program)),
    )


def check(made: Made, calls: list[list[Any]], tolerance: float) -> None:
    """Compare outputs with PyTorch's; NaN equals NaN. ``tolerance`` is absolute and relative."""
    for tensors in calls:
        want = made.reference([t.clone() for t in tensors])
        names = [s.name for s in made.signature.inputs]
        got = made.runner.run({n: t.numpy() for n, t in zip(names, tensors, strict=True)})
        for spec, expected in zip(made.signature.outputs, want, strict=True):
            np.testing.assert_allclose(got[spec.name], expected.numpy(), rtol=tolerance, atol=tolerance)


def refused(target: Any, program: Path, field: str = "why") -> str:
    """That field of the pre-flight's refusals, joined; each must have a remedy."""
    import torch

    loaded = torch.export.load(program)
    findings = [f for f in target.preflight(loaded, signature_of(loaded)) if f.verdict == "refused"]
    assert all(f.remedy for f in findings)
    return "; ".join(getattr(f, field) for f in findings)
