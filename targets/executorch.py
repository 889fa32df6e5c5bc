"""The ExecuTorch target: one ``.pte`` file, delegated to XNNPACK where XNNPACK is right, portable kernels elsewhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError, MissingToolError
from build.legalize import legalize
from targets.contract import Finding, Lowered, LowerRequest, Runner, Signature
from targets.xnnpack import coverage, ranges
from targets.xnnpack.runner import ExecuTorchRunner

if TYPE_CHECKING:
    from torch.export import ExportedProgram

REWRITES: Sequence[str] = ()

#: The one file of an artifact.
FILE = "model.pte"


def preflight(program: ExportedProgram, signature: Signature) -> list[Finding]:
    """What ExecuTorch cannot take. Reads the program only."""
    return []


def lower(program: ExportedProgram, request: LowerRequest) -> Lowered:
    """Write ``model.pte``."""
    program = legalize(program, REWRITES)
    edge, data = _convert(program)
    path = request.directory / FILE
    path.write_bytes(data)
    runner = ExecuTorchRunner(path, request.signature)
    narrowed = ranges.narrowed(request.signature, runner.input_sizes)
    if narrowed:
        raise LoweringError(f"the converter narrowed the range of {'; '.join(narrowed)}")
    return Lowered(files=(FILE,), coverage=coverage.count(edge), contract={"names": "from the program's signature"})


def _convert(program: ExportedProgram) -> tuple[Any, bytes]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    declared = ranges.declared_ranges(program)
    with ranges.no_cpu_backend_guards():
        edge = to_edge_transform_and_lower(
            program,
            partitioner=[XnnpackPartitioner()],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        ranges.restore_ranges(edge.exported_program().graph_module, declared)
        return edge.exported_program(), bytes(edge.to_executorch(ExecutorchBackendConfig()).buffer)


def load(directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
    """Load the ``.pte`` into the ExecuTorch runtime of this host."""
    if importlib.util.find_spec("executorch") is None:
        raise MissingToolError("the executorch package is not installed", remedy="Run this target's nox session.")
    return ExecuTorchRunner(directory / lowered_files[0], signature)
