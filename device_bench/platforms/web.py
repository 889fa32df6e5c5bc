"""Browsers: this system's Chromium, a person's own, or an Android device's."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from build.errors import InputError
from device_bench.artifacts import Artifact
from device_bench.devices import adb
from device_bench.devices.base import Facts, Place
from device_bench.host import host_outputs as native_outputs
from device_bench.job import Data
from device_bench.web import page
from device_bench.web.chromium import Chromium
from device_bench.web.harness import Browser, WebHarness
from device_bench.web.host import host_outputs as onnx_outputs
from device_bench.web.person import AdbBrowser, OpenBrowser
from device_bench.web.runtime import PROVIDERS, ensure
from device_bench.web.server import Server

if TYPE_CHECKING:
    from device_bench.options import LabOptions
    from targets.contract import Array

PLATFORM = "web"
#: litert artifacts are no part of build-web: other platforms ship them, and they run here too.
BUILDER = "build"
TARGETS = ("ort_web", "litert")
VARIANTS = PROVIDERS


def add_options(group: argparse._ArgumentGroup) -> None:
    """Which browser."""
    group.add_argument("--open", action="store_true", help="print a URL to open in your own browser")
    group.add_argument("--serial", action="append", metavar="S", help="the browser of this Android device, over adb")
    group.add_argument(
        "--software-gpu", action="store_true", help="give Chromium a GPU in software: right values, meaningless times"
    )


def check(options: LabOptions) -> None:
    """Whether every provider has what is asked for.

    Raises:
        InputError: a number of threads, for a provider that computes on a GPU.
    """
    others = dict.fromkeys(p.variant for p in options.points if p.variant != "wasm" and p.threads != 1)
    if others:
        raise InputError(
            f"--threads and --sweep threads= are of wasm: on {', '.join(others)} they would change nothing",
            remedy="Leave them out, or measure --variants wasm in a run of its own.",
        )


def runs(artifact: Artifact, variant: str) -> bool:
    """Every artifact is tried on every provider: one that a runtime can't take fails, and says so."""
    return artifact.target in TARGETS and variant in VARIANTS


@contextlib.contextmanager
def places(options: LabOptions) -> Iterator[list[Place]]:
    """The browser that was asked for."""
    own = options.own["open"], bool(options.serials), options.own["software_gpu"]
    if sum(own) > 1:
        raise InputError("--open, --serial and --software-gpu name different browsers", remedy="Give one of them.")
    if len(options.serials) > 1:
        raise InputError("one device at a time opens the page", remedy="Give one --serial.")
    if options.settings.affinity:
        raise InputError("--affinity: a page can't be pinned to CPUs", remedy="Start a pinned browser, and use --open.")
    ensure()
    with Server(page.lobby(), {"Content-Security-Policy": page.header_policy()}) as server:
        browser: Browser
        if options.own["open"]:
            browser = OpenBrowser(server, patience=options.wait)
        elif options.serials:
            adb.find(options.serials)  # one that is not there is told at once
            browser = AdbBrowser(server, options.serials[0], patience=options.wait)
        else:
            scratch = options.out / "bench" / "local"
            browser = Chromium(server, scratch, software_gpu=options.own["software_gpu"])
        try:
            yield [browser]
        finally:
            if isinstance(browser, Chromium):
                browser.stop()


def harness(place: Place, facts: Facts) -> WebHarness:
    """The page."""
    return WebHarness(cast(Browser, place))


def host_outputs(options: LabOptions, artifact: Artifact, data: Data) -> Mapping[str, Mapping[str, Array]] | None:
    """Native ONNX Runtime's, or those of the native harness."""
    if artifact.target == "ort_web":
        return onnx_outputs(options.out, artifact, data)
    return native_outputs(options.out, artifact, data)
