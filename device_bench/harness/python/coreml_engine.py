"""A package in Core ML on macOS, on one of its choices of compute units.

Written against coremltools 9.0's documentation; tested with a stand-in for its models, not yet on a Mac.
"""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from build.errors import EdgeportError
from device_bench.harness.python.engine import Failure, Loop, Plan, Scalar
from device_bench.harness.python.measure import CLOCK, sequential
from targets.checks import signature_from_json
from targets.contract import Signature, TensorSpec
from targets.mlpackage.features import from_carrier, to_carrier
from targets.mlpackage.package import read_spec
from targets.mlpackage.runner import SIGNATURE_KEY, STATE_KEY, version
from targets.mlpackage.state import load_initial

if TYPE_CHECKING:
    from targets.contract import Array

#: our name -> coremltools's ``ComputeUnit``.
UNITS = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_gpu": "CPU_AND_GPU", "cpu_ane": "CPU_AND_NE"}
#: coremltools's classes of compute devices (``coremltools.models.compute_device``) -> our name.
_DEVICES = {"MLCPUComputeDevice": "cpu", "MLGPUComputeDevice": "gpu", "MLNeuralEngineComputeDevice": "ane"}


class Model(Protocol):
    """The part of coremltools's ``MLModel`` that is used."""

    def predict(self, data: Mapping[str, Array]) -> Mapping[str, Array]:
        """One inference."""
        ...


class Models(Protocol):
    """Where models come from: coremltools, or a stand-in that says so.

    Attributes:
        fake: why this is not Core ML; None when it is.
    """

    fake: str | None

    def load(self, package: Path, unit: str) -> Model:
        """Compile and load a package; ``unit`` is the name of a ``ComputeUnit``."""
        ...

    def plan(self, model: Model, unit: str) -> Mapping[str, int] | None:
        """How many operations Core ML means to run on each device; None where it does not say."""
        ...


class CoreMl:
    """coremltools on macOS."""

    fake: str | None = None

    def __init__(self) -> None:
        # coremltools imports torch where it is installed, for its converters: seconds and memory that no app spends.
        sys.modules.setdefault("torch", cast(Any, None))
        import coremltools  # noqa: F401  (now: its import is no part of loading a model)

    def load(self, package: Path, unit: str) -> Model:
        """See :class:`Models`."""
        import coremltools as ct

        model: Model = ct.models.MLModel(str(package), compute_units=getattr(ct.ComputeUnit, unit))
        return model

    def plan(self, model: Model, unit: str) -> Mapping[str, int] | None:
        """From ``MLComputePlan``, which macOS 14.4 and later have."""
        import coremltools as ct
        from coremltools.models.compute_plan import MLComputePlan

        compiled: Any = model
        made = MLComputePlan.load_from_path(compiled.get_compiled_model_path(), getattr(ct.ComputeUnit, unit))
        return planned(made)


def planned(plan: Any) -> dict[str, int]:
    """Device -> how many operations of the main function prefer it (coremltools's ``MLComputePlan``)."""
    found: Counter[str] = Counter()
    for operation in plan.model_structure.program.functions["main"].block.operations:
        usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
        if usage is not None:  # constants run nowhere
            kind = type(usage.preferred_compute_device).__name__
            found[_DEVICES.get(kind, kind)] += 1
    return dict(found)


class CoreMlEngine:
    """See :class:`device_bench.harness.python.engine.Engine`. Core ML chooses its own threads."""

    def __init__(self, models: Models | None = None) -> None:
        self._models: Models = models or CoreMl()
        self.runtime = "Core ML" if self._models.fake is None else "fake Core ML"
        self.version = f"macOS {platform.mac_ver()[0] or 'none'}, coremltools {version()}"
        self.clock = CLOCK
        self.concurrent = 1
        self.plain = True
        self._results: Mapping[str, Array] | None = None

    def load(self, artifact: Path, signature: Signature, threads: int, options: Mapping[str, Any]) -> None:
        """See the Protocol. Options: ``unit``."""
        if self._models.fake is None and platform.system() != "Darwin":
            raise Failure("load", f"Core ML runs on macOS, this is {platform.system()}")
        self._unit = UNITS[options["unit"]]
        try:
            metadata = read_spec(artifact).description.metadata.userDefined
            if signature_from_json(metadata.get(SIGNATURE_KEY, "{}")) != signature:
                raise Failure("load", f"{artifact.name} declares another signature than the program's")
            states = json.loads(metadata.get(STATE_KEY, "[]"))
            initial = load_initial(artifact.parent) if states else {}
            self._model = self._models.load(artifact, self._unit)
        except Failure:
            raise
        except EdgeportError as error:
            raise Failure("load", error.message) from error
        except Exception as error:  # coremltools has no class of its own for what Core ML refuses
            raise Failure("load", f"Core ML refuses {artifact.name}: {_first_line(error)}") from error
        self._signature = signature
        self._states = {
            s["input"]: to_carrier(
                TensorSpec(name=s["input"], dtype=s["dtype"], shape=tuple(s["shape"])), initial[s["input"]]
            )
            for s in states
        }

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """See the Protocol. State starts at its first values, and stays there: each run is the same."""
        try:
            feeds = {spec.name: to_carrier(spec, inputs[spec.name]) for spec in self._signature.inputs}
        except EdgeportError as error:
            raise Failure("prepare", error.message) from error
        self._feeds = {**self._states, **feeds}

    def run(self) -> None:
        """See the Protocol."""
        try:
            self._results = self._model.predict(self._feeds)
        except Exception as error:  # likewise
            raise Failure("run", f"Core ML failed: {_first_line(error)}") from error

    def loop(self, plan: Plan) -> Loop:
        """See the Protocol."""
        return sequential(self.run, plan)

    def spoil(self, pattern: int) -> None:
        """See the Protocol. Each prediction returns arrays of its own."""
        self._results = None

    def outputs(self) -> list[Mapping[str, Array]]:
        """See the Protocol."""
        results = self._results or {}
        specs = self._signature.outputs
        return [{s.name: from_carrier(s, results[s.name]).copy() for s in specs if s.name in results}]

    def threads(self) -> int | None:
        """Core ML does not say."""
        return None

    def details(self) -> dict[str, Scalar]:
        """See the Protocol."""
        found: dict[str, Scalar] = {"compute_units": self._unit, "fake": self._models.fake is not None}
        if self._models.fake is not None:
            found["why_fake"] = self._models.fake
        try:
            plan = self._models.plan(self._model, self._unit)
        except Exception as error:  # an older macOS has no such plan: the measurement stands without it
            return {**found, "plan": f"not available: {_first_line(error)}"}
        if plan is None:
            return {**found, "plan": "not available"}
        used = ",".join(sorted(device for device, count in plan.items() if count))
        return {**found, "plan": "MLComputePlan", "units_used": used, **{f"ops_on_{d}": n for d, n in plan.items()}}


def devices() -> dict[str, str]:
    """The compute units that Core ML can be asked for here; none where there is no Core ML."""
    return {name: unit for name, unit in UNITS.items() if platform.system() == "Darwin"}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:250]
