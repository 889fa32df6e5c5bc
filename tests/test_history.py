"""An artifact whose answer depends on what it was asked before is found; one that fails is left to the comparison."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from build.capture.run import capture
from build.errors import VerificationError
from build.record import ProgramRecord
from build.verify.history import history_problems
from targets.contract import Signature


class _Runner:
    """``y = 2x``, with a fault of the kind that runtimes have."""

    runtime = "made up"

    def __init__(self, fault: str) -> None:
        self._fault, self._first, self._largest = fault, 0, 0

    def signature(self) -> Signature:
        raise NotImplementedError

    def run(self, inputs: Any) -> dict[str, Any]:
        x = inputs["x"]
        self._first = self._first or x.size
        y = 2 * x
        if self._fault == "first sizes are kept" and x.size > self._first:
            y.reshape(-1)[self._first :] = np.nan
        if self._fault == "no way back" and self._largest > x.size:
            y = y + 1
        self._largest = max(self._largest, x.size)
        if self._fault == "does not grow" and x.size > self._first:
            raise VerificationError("the buffer is too small")
        if self._fault == "always fails":
            raise VerificationError("no")
        if self._fault == "rounding":
            y = y + np.float32(1e-4) * (self._first % 7)
        return {"y": y}


class _Double(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": 2 * x}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], tuple[Path, ProgramRecord]]:
    def make(dynamic: bool) -> tuple[Path, ProgramRecord]:
        folder = tmp_path_factory.mktemp("history")
        shapes = {"x": {0: Dim("batch", min=1, max=16)}} if dynamic else None
        torch.export.save(torch.export.export(_Double(), (torch.randn(3, 4),), dynamic_shapes=shapes), folder / "m.pt2")
        source = {"kind": "program", "name": "m", "key": "k", "path": str(folder / "m.pt2"), "data": None}
        (folder / "program").mkdir()
        return folder / "program", capture(source, folder / "program", lambda stage: None)

    return make


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("none", []),
        ("rounding", []),
        ("always fails", []),
        ("first sizes are kept", [r"call 'upper-\d' at \S+=16 depends on the calls before: output 'y' .* NaN"]),
        ("no way back", [r"call 'lower-\d' at \S+=1 depends on the calls before: output 'y' is off by 1 "]),
        ("does not grow", [r"call 'upper-\d' at \S+=16 .* it fails: the buffer is too small"]),
    ],
)
def test_calls_before(fault: str, words: list[str], captured: Any) -> None:
    folder, record = captured(True)
    found = history_problems(lambda: _Runner(fault), folder, record)
    assert len(found) == len(words)
    for line, pattern in zip(found, words, strict=True):
        assert re.search(pattern, line), line


def test_a_program_of_one_size_has_no_other_calls(captured: Any) -> None:
    folder, record = captured(False)
    assert history_problems(lambda: _Runner("first sizes are kept"), folder, record) == []
