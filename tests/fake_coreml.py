"""A stand-in for Core ML's models where there is no Core ML: it computes with the MIL evaluator, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from device_bench.harness.python.coreml_engine import Model
from targets import mil

WHY = "Edgeport's MIL evaluator computes in place of Core ML"


class FakeModel:
    """A package in the evaluator."""

    def __init__(self, package: Path, fault: str) -> None:
        self._program = mil.load(package)
        self._fault = fault

    def predict(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`device_bench.harness.python.coreml_engine.Model`."""
        if self._fault == "fail":
            raise RuntimeError("Error computing NN outputs.\nmore words")
        found = mil.evaluate(self._program, dict(data))
        return {f"{name}x": value for name, value in found.items()} if self._fault == "nameless" else found


class FakeModels:
    """See :class:`device_bench.harness.python.coreml_engine.Models`.

    Args:
        fault: how it misbehaves: ``refuse``, ``fail``, ``nameless``, ``no-plan``.
    """

    fake: str | None = WHY

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self.asked: list[str] = []

    def load(self, package: Path, unit: str) -> Model:
        """See the Protocol."""
        self.asked.append(unit)
        if self._fault == "refuse":
            raise RuntimeError("compiler error: Error reading protobuf spec.")
        return FakeModel(package, self._fault)

    def plan(self, model: Model, unit: str) -> Mapping[str, int] | None:
        """See the Protocol."""
        if self._fault == "no-plan":
            raise ValueError("MLComputePlan is not supported.")
        return {"cpu": 2, "ane": 7} if unit in ("ALL", "CPU_AND_NE") else {"cpu": 9}
