"""The ExecuTorch target: one ``.pte`` file, delegated to XNNPACK where XNNPACK is right, portable kernels elsewhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from build.errors import MissingToolError
from targets.contract import Finding, Lowered, LowerRequest, Runner, Signature
from targets.xnnpack import lowering
from targets.xnnpack import preflight as checks
from targets.xnnpack.lowering import FP16_REWRITES, REWRITES
from targets.xnnpack.runner import ExecuTorchRunner

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["FP16_REWRITES", "REWRITES", "load", "lower", "preflight"]


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """What ExecuTorch cannot take, and what is rewritten for it. Reads the program; imports torch only."""
    return checks.findings(program, signature, list(REWRITES))


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Convert to ``model.pte`` with the whole declared range of every dynamic dimension.

    Raises:
        UnsupportedError: the pre-flight refuses the program.
        LoweringError: the converter or the runtime refuses it, or it would hold less than the declared range.
    """
    return lowering.lower(program, request)


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """Load the ``.pte`` into the ExecuTorch runtime of this host.

    Raises:
        MissingToolError: the executorch package is not installed.
        VerificationError: the runtime refuses the file.
    """
    if importlib.util.find_spec("executorch") is None:
        raise MissingToolError("the executorch package is not installed", remedy="Run this target's nox session.")
    return ExecuTorchRunner(directory / lowered_files[0], signature)
