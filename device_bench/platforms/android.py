"""Android devices, over adb."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from device_bench.devices import adb
from device_bench.devices.base import Place
from device_bench.emulator.launch import emulated_devices
from device_bench.platforms.native import TARGETS, VARIANTS, check, harness, host_outputs, runs

if TYPE_CHECKING:
    from device_bench.options import LabOptions

__all__ = [
    "BUILDER",
    "PLATFORM",
    "TARGETS",
    "VARIANTS",
    "add_options",
    "check",
    "harness",
    "host_outputs",
    "places",
    "runs",
]

PLATFORM = "android"
BUILDER = "build-android"


def add_options(group: argparse._ArgumentGroup) -> None:
    """Which devices."""
    group.add_argument("--serial", action="append", metavar="S", help="as 'adb devices' lists it (repeatable)")
    group.add_argument("--emulated", type=_count, default=0, metavar="N", help="start N emulated devices for this run")


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"--emulated {text}: needs 0 or more")
    return int(text)


@contextlib.contextmanager
def places(options: LabOptions) -> Iterator[list[Place]]:
    """The devices named, all that are connected, or emulated ones."""
    serials, emulated = options.serials, options.own["emulated"]
    if emulated:
        with emulated_devices(options.out / "bench" / "emulated", emulated) as started:
            yield list(adb.find([*serials, *started.serials]))
    else:
        yield list(adb.find(serials))
