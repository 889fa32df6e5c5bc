"""This machine, with the native harness."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from device_bench.devices.base import Place
from device_bench.devices.local import local_device
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

PLATFORM = "local"
BUILDER = "build-linux-arm64"


def add_options(group: argparse._ArgumentGroup) -> None:
    """None of its own."""


@contextlib.contextmanager
def places(options: LabOptions) -> Iterator[list[Place]]:
    """Here."""
    yield [local_device(options.out / "bench" / "local")]
