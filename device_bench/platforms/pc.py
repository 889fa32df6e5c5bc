"""PCs: OpenVINO IR on this machine's CPU, GPU and NPU."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from build.errors import DeviceError, EdgeportError, InputError
from build.log import say
from device_bench.artifacts import Artifact
from device_bench.contract import HarnessRun, Scalar, Task
from device_bench.devices.base import Facts, Place
from device_bench.job import OUTPUTS_ONLY, Data
from device_bench.platforms.python_host import HostPlace, PythonHarness

if TYPE_CHECKING:
    from device_bench.options import LabOptions
    from targets.contract import Array

PLATFORM = "pc"
BUILDER = "build-pc"
TARGETS = ("openvino",)
#: OpenVINO's performance hints.
VARIANTS = ("latency", "throughput")

#: as OpenVINO names devices; a number tells several of a kind apart.
_DEVICE = re.compile(r"(CPU|GPU|NPU)(\.\d+)?")


def add_options(group: argparse._ArgumentGroup) -> None:
    """Which devices."""
    group.add_argument(
        "--device", metavar="D,D", default="CPU", help="CPU, GPU, NPU or GPU.1; comma-separated; all: those found here"
    )


def check(options: LabOptions) -> None:
    """Nothing: which devices there are is asked of OpenVINO (:func:`places`)."""


def runs(artifact: Artifact, variant: str) -> bool:
    """Each has both ways."""
    return True


class PcHarness(PythonHarness):
    """OpenVINO on one device of this machine."""

    def __init__(self, device: str) -> None:
        super().__init__("openvino", "openvino", lambda variant: {"device": device, "hint": variant})

    def measure(self, task: Task, more: Mapping[str, Scalar] | None = None) -> HarnessRun:
        """See the Protocol. With the evaluation set, the model cache is measured too."""
        run = super().measure(task, more)
        if not task.evaluate or task.settings.max_runs == 1:
            return run
        return replace(run, details={**run.details, **_cache_details(super().measure, task)})


def _cache_details(measure: Callable[[Task, Mapping[str, Scalar]], HarnessRun], task: Task) -> dict[str, Scalar]:
    """What the model cache does; where that cannot be found out, why: what was measured before stands without it."""
    try:
        return _cache(measure, task)
    except EdgeportError as error:
        say(f"{task.artifact.label}: the model cache was not measured: {error.message}")
        return {"cache_problem": f"not measured: {error.message}"}


def _cache(measure: Callable[[Task, Mapping[str, Scalar]], HarnessRun], task: Task) -> dict[str, Scalar]:
    """Load times of two fresh processes that share a model cache: it is empty for the first."""
    own = task.settings
    short = replace(OUTPUTS_ONLY, threads=own.threads, affinity=own.affinity, batch=own.batch)
    task = replace(task, settings=short, evaluate=False)
    with TemporaryDirectory(prefix="edgeport-") as folder:
        first, cached = (measure(task, {"cache_dir": folder}) for _ in range(2))
    return {
        "first_load_ms": first.result["load_ns"] / 1e6,
        "cached_load_ms": cached.result["load_ns"] / 1e6,
        "cache_was_used": cached.details["loaded_from_cache"],
    }


@contextlib.contextmanager
def places(options: LabOptions) -> Iterator[list[Place]]:
    """The devices named; one that is not there is a place whose every measurement says so.

    Raises:
        InputError: a name that is none, or a number of threads for a device that has none.
    """
    found: dict[str, str] = PcHarness("CPU").ask("devices")
    wanted = [d.strip() for d in options.own["device"].split(",") if d.strip()]
    if wanted == ["all"]:
        wanted = list(found)
        say(f"OpenVINO finds here: {', '.join(f'{d} ({n})' for d, n in found.items())}")
    if not wanted:
        raise InputError("--device names nothing", remedy="Name some of CPU, GPU, NPU; or: all")
    for device in wanted:
        if not _DEVICE.fullmatch(device):
            raise InputError(f"--device {device}: OpenVINO has no device of that name", remedy="CPU, GPU, NPU, GPU.1")
    others = [d for d in wanted if d.split(".")[0] != "CPU"]
    if others and any(p.threads != 1 for p in options.points):
        raise InputError(
            f"--threads and --sweep threads= are of the CPU: on {', '.join(others)} they would change nothing",
            remedy="Leave them out, or measure --device CPU in a run of its own.",
        )
    yield [HostPlace(options.out, "pc", device, missing=_missing(device, found)) for device in dict.fromkeys(wanted)]


def _missing(device: str, found: Mapping[str, str]) -> DeviceError | None:
    if any(d == device or d.startswith(f"{device}.") for d in found):
        return None
    return DeviceError(
        f"OpenVINO finds no {device} on this machine (it finds {', '.join(found)})",
        remedy="A GPU or NPU needs its driver: see OpenVINO's system requirements.",
    )


def harness(place: Place, facts: Facts) -> PcHarness:
    """OpenVINO on the place's device."""
    return PcHarness(cast(HostPlace, place).device)


def host_outputs(options: LabOptions, artifact: Artifact, data: Data) -> Mapping[str, Mapping[str, Array]] | None:
    """The outputs of one request and one thread of this machine's CPU."""
    return PcHarness("CPU").reference(options.out, artifact, data, "latency")
