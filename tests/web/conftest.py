"""Fixtures of the web tests: an output folder, the command line, Chromium with what makes a page fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from device_bench import measurement
from device_bench.contract import HarnessRun, Task
from device_bench.job import Settings
from device_bench.web import page
from device_bench.web.chromium import Chromium
from device_bench.web.harness import WebHarness
from device_bench.web.server import Server
from tests.conftest import ROOT, environment
from tests.results.browser import chromium
from tests.web.support import QUICK, artifact, data_of, make_out, require_browser

SHORT = [
    *("--warmup-runs", "1", "--warmup-seconds", "0", "--min-runs", "5", "--min-seconds", "0.05"),
    *("--max-seconds", "20", "--repeats", "1", "--seed", "7"),
]


@pytest.fixture(scope="session")
def browser_here() -> None:
    """What a test needs that opens pages."""
    require_browser()


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with every artifact of the digits model that runs in a page."""
    return make_out(tmp_path_factory.mktemp("web") / "out")


def command(out: Path, results: Path, *arguments: str) -> list[str]:
    """The command line of a run."""
    where = ("--out", str(out), "--results", str(results))
    return [sys.executable, "-m", "device_bench", "bench-web", *where, *SHORT, *arguments]


@dataclass(frozen=True, kw_only=True)
class WebRun:
    """How a run ended, and what it left in its folder."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def measurements(self) -> list[dict[str, Any]]:
        """Every measurement, read as the lab reads them."""
        return [measurement.read(p) for p in sorted(self.folder.glob("run-*/*/*.json"))]

    def of(self, target: str, precision: str = "fp32", threads: int = 1) -> dict[str, Any]:
        """The one measurement of a cell."""
        wanted = (target, precision, threads)
        names = ("target", "precision", "threads")
        (found,) = [m for m in self.measurements if tuple(m["measurement"][n] for n in names) == wanted]
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of ``summary.json``."""
        (path,) = self.folder.glob("run-*/summary.json")
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
        return rows


Bench = Callable[..., WebRun]


@pytest.fixture
def bench(browser_here: None, out: Path, tmp_path: Path) -> Bench:
    """Run ``bench-web`` as nox does, with results in this test's own folder."""

    def run(*arguments: str, out: Path = out, **variables: str) -> WebRun:
        done = subprocess.run(
            command(out, tmp_path / "results", *arguments),
            cwd=ROOT,
            env={**environment(), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return WebRun(code=done.returncode, stdout=done.stdout, stderr=done.stderr, folder=tmp_path / "results")

    return run


class Lab:
    """Chromium in this process, and what to do to its next page."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.server = Server(page.lobby(), {"Content-Security-Policy": page.header_policy()})
        self.chromium = Chromium(self.server, out / "bench" / "local", watch=self._watch)
        self.harness = WebHarness(self.chromium)
        self._once: Callable[[Any], None] | None = None

    def _watch(self, opened: Any) -> None:
        disturb, self._once = self._once, None
        if disturb is not None:
            disturb(opened)

    def measure(
        self,
        target: str = "ort_web",
        precision: str = "fp32",
        *,
        out: Path | None = None,
        settings: Settings = QUICK,
        variant: str = "wasm",
        evaluate: bool = True,
        timeout: float | None = 60,
        disturb: Callable[[Any], None] | None = None,
        batch: int | None = None,
    ) -> HarnessRun:
        """One measurement. ``disturb``: called with its page when that is open."""
        self._once = disturb
        found = artifact(out or self.out, target, precision)
        task = Task(
            artifact=found,
            data=data_of(out or self.out, found, batch),
            settings=settings,
            variant=variant,
            evaluate=evaluate,
            timeout=timeout,
        )
        return self.harness.measure(task)


@pytest.fixture(scope="module")
def lab(browser_here: None, out: Path) -> Iterator[Lab]:
    """One for a file's tests: each must leave it fit for the next."""
    os.environ.setdefault("EDGEPORT_PYTHON", sys.executable)
    made = Lab(out)
    with made.server:
        yield made
        made.chromium.close()


@pytest.fixture(scope="module")
def browser(browser_here: None) -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(page.lobby(), {"Content-Security-Policy": page.header_policy()}) as started:
        yield started
