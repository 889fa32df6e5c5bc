"""The LiteRT target: ``.tflite`` files for the LiteRT interpreter with XNNPACK.

litert-torch converts programs whose sizes are fixed well; its own dynamic dimensions break what reshapes or broadcasts.
So the program is converted at several sizes, and the differences between the flatbuffers are generalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from build.errors import LoweringError, MissingToolError
from targets.contract import EntryPoint, Finding, Lowered, LowerRequest, Runner, Signature
from targets.tflite import flatbuffer
from targets.tflite.lowering import make

if TYPE_CHECKING:
    from torch.export import ExportedProgram

REWRITES: Sequence[str] = ()


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """See :class:`targets.contract.Target`."""
    return []


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """See :class:`targets.contract.Target`."""
    return make(program, request, REWRITES)


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """See :class:`targets.contract.Target`."""
    try:
        from targets.tflite.runner import LiteRtRunner

        return LiteRtRunner(Path(directory) / lowered_files[0], signature)
    except ImportError as error:
        raise MissingToolError(
            f"LiteRT does not run on this host: {error}", remedy="Install ai-edge-litert."
        ) from error
