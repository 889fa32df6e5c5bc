"""One attempt at an artifact: lower, load, verify. A mixed-precision search makes several."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from build.archive import load_program
from build.record import CALIBRATION, PROGRAM, ProgramRecord
from build.verify.check import Report, limits_for, verify
from build.verify.history import history_problems
from targets.checks import require_integers
from targets.contract import Lowered, LowerRequest, Runner, Target
from targets.precisions import PRECISIONS

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What came of it."""

    lowered: Lowered
    report: Report
    keep_float: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes attempts of one (target, program, precision).

    Attributes:
        folder: the captured program's.
        enter: told of each stage.
        lowered: told of each artifact before it is verified, with the peak memory of converting it in MiB.
    """

    target: Target
    record: ProgramRecord
    folder: Path
    precision: str
    enter: Callable[[str], None]
    lowered: Callable[[Lowered, float], None] = lambda lowered, peak: None

    def request(
        self, directory: Path, keep_float: tuple[str, ...], converted: Callable[[], None] = lambda: None
    ) -> LowerRequest:
        """The request for this artifact, calibration data read."""
        return LowerRequest(
            model=self.record.name,
            signature=self.record.signature,
            precision=self.precision,
            directory=directory,
            calibration=calibration_calls(self.folder, self.record, self.precision),
            keep_float=keep_float,
            converted=converted,
        )

    def make(
        self,
        directory: Path,
        keep_float: tuple[str, ...],
        max_metric_drop: float | None,
        program: ExportedProgram | None = None,
    ) -> Attempt:
        """Lower into an empty ``directory``, load, verify.

        Args:
            program: the program as loaded, where the caller has it already; it is no longer the caller's.

        Raises:
            EdgeportError: no artifact, or one that can't be run.
        """
        self.enter("lower")
        given = program or load_program(self.folder / PROGRAM)
        peaks: list[float] = []
        lowered = self.target.lower(given, self.request(directory, keep_float, lambda: peaks.append(peak_mb())))
        self.lowered(lowered, peaks[-1] if peaks else peak_mb())
        if not keep_float and not self.record.quantized:
            require_integers(lowered, self.precision)
        self.enter("load")

        def load() -> Runner:
            return self.target.load(directory, lowered.files, self.record.signature)

        runner = load()
        self.enter("verify")
        limits = limits_for(self.record, self.precision, max_metric_drop)
        report = verify(runner, lowered, self.folder, self.record, limits)
        if limits.tolerance is None and not report.problems:
            del runner  # its memory is wanted by those that follow
            report = replace(report, problems=tuple(history_problems(load, self.folder, self.record)))
        return Attempt(lowered=lowered, report=report, keep_float=keep_float)


def calibration_calls(folder: Path, record: ProgramRecord, precision: str) -> tuple[Mapping[str, Array], ...]:
    """The calls that a calibrated precision of a float program is made with; none for any other."""
    if record.calibration is None or record.quantized or not PRECISIONS[precision].calibrated:
        return ()
    from safetensors import safe_open

    with safe_open(folder / CALIBRATION, framework="numpy") as file:
        return tuple(
            {s.name: file.get_tensor(f"{call}/{s.name}") for s in record.signature.inputs}
            for call in record.calibration.calls
        )


def empty(directory: Path) -> None:
    """Remove everything in a staging folder."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MiB (Linux counts ru_maxrss in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
