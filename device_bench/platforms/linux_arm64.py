"""arm64 boards, over ssh."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from build.errors import InputError
from device_bench.devices import ssh
from device_bench.devices.base import Place
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

PLATFORM = "linux-arm64"
BUILDER = "build-linux-arm64"


def add_options(group: argparse._ArgumentGroup) -> None:
    """Which boards."""
    group.add_argument("--serial", action="append", metavar="HOST", help="user@host, or an ssh alias (repeatable)")
    group.add_argument("--ssh-config", metavar="FILE", help="in place of ~/.ssh/config")


@contextlib.contextmanager
def places(options: LabOptions) -> Iterator[list[Place]]:
    """The boards named."""
    if not options.serials:
        raise InputError("no board is named", remedy="Name one: -- --serial user@host")
    name = options.own["ssh_config"]
    config = Path(name).resolve() if name else None
    if config is not None and not config.is_file():
        raise InputError(f"--ssh-config {name}: no such file")
    yield [ssh.ssh_device(host, config=config) for host in options.serials]
