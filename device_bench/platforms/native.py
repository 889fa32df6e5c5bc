"""What the platforms of the native harness have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from device_bench.artifacts import ENGINES, Artifact
from device_bench.contract import HarnessRun, Task
from device_bench.devices.base import Device, Facts, Place
from device_bench.harness import build
from device_bench.host import host_outputs as native_outputs
from device_bench.job import Data
from device_bench.session import run_harness

if TYPE_CHECKING:
    from device_bench.options import LabOptions
    from targets.contract import Array

TARGETS = tuple(ENGINES)
VARIANTS = ("",)


class NativeHarness:
    """The native harness on one device."""

    def __init__(self, device: Device, bundle: build.Bundle) -> None:
        self._device = device
        self._bundle = bundle
        self.version = bundle.version
        self.arch = bundle.arch

    def measure(self, task: Task) -> HarnessRun:
        """See :class:`device_bench.contract.Harness`."""
        return run_harness(
            self._device,
            self._bundle,
            task.artifact,
            task.data,
            task.settings,
            evaluate=task.evaluate,
            timeout=task.timeout,
            emulated=task.emulated,
        )


def check(options: LabOptions) -> None:
    """Whatever the options say, it can be tried."""


def runs(artifact: Artifact, variant: str) -> bool:
    """There is one way."""
    return True


def harness(place: Place, facts: Facts) -> NativeHarness:
    """The harness for the device's architecture, built first where it must be."""
    return NativeHarness(cast(Device, place), build.ensure(facts.arch))


def host_outputs(options: LabOptions, artifact: Artifact, data: Data) -> Mapping[str, Mapping[str, Array]] | None:
    """The outputs of the same harness on this machine."""
    return native_outputs(options.out, artifact, data)
