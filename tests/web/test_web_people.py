"""A person's own browser, and a phone's: the URL, one fresh page per measurement, what happens when it is closed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from device_bench import measurement
from device_bench.emulator.launch import Started, emulated_devices
from device_bench.web.server import Server
from tests.conftest import ROOT, environment, require_tools
from tests.device.conftest import adb_server, namespaces
from tests.results.browser import chromium
from tests.web.conftest import Bench, command

__all__ = ["adb_server", "namespaces"]
_URL = re.compile(r"http://127\.0\.0\.1:\d+/[\w-]+/")


class Session:
    """A run that waits for somebody to open its page."""

    def __init__(self, out: Path, results: Path, *arguments: str) -> None:
        self.results = results
        self.process = subprocess.Popen(
            command(out, results, *arguments),
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        self._lines.extend(iter(stream.readline, ""))

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return "".join(self._lines)

    def until(self, look: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait for something to be there."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.1)
        return found

    def url(self) -> str:
        """The address that it prints."""
        return str(self.until(lambda: _URL.search(self.text))[0])

    def end(self, page: Any = None) -> int:
        """Its exit code. ``page``: one that must be kept alive meanwhile."""
        deadline = time.monotonic() + 120
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            if page is None:
                time.sleep(0.1)
            else:
                page.wait_for_timeout(100)
        self._reader.join(10)
        return int(self.process.returncode)

    @property
    def measurements(self) -> list[dict[str, Any]]:
        """Those that it has written."""
        return [measurement.read(p) for p in sorted(self.results.glob("run-*/*/*.json"))]


@contextlib.contextmanager
def session(out: Path, results: Path, *arguments: str) -> Iterator[Session]:
    started = Session(out, results, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


@pytest.mark.slow
def test_a_person_opens_the_page(browser_here: None, out: Path, tmp_path: Path) -> None:
    with (
        session(out, tmp_path / "results", "--open", "--targets", "all") as run,
        chromium() as browser,
    ):
        page = browser.new_page()
        places: list[str] = []
        page.on("framenavigated", lambda frame: places.append(frame.url))
        page.goto(run.url())
        assert run.end(page) == 0, run.text
        page.wait_for_selector("#notice:not([hidden])")
        assert "All measurements are taken" in page.inner_text("#notice")
        # Pictures still work: what they need is on the page.
        assert page.is_enabled("#picture")
    assert {m["measurement"]["target"] for m in run.measurements} == {"ort_web", "litert"}
    for found in run.measurements:
        assert found["status"] == "ok", found["error"]
        assert found["device"]["serial"] == "open"
        assert found["device"]["cores"] >= 1
        assert found["accuracy"]["changed_decisions"] == 0
    jobs = [p for p in dict.fromkeys(places) if p.count("/") > run.url().count("/")]
    assert len(jobs) == 2, "each measurement has a page of its own"


@pytest.mark.slow
def test_a_person_closes_the_page_half_way(browser_here: None, out: Path, tmp_path: Path) -> None:
    arguments = ("--open", "--targets", "ort_web", "--wait", "2", "--min-seconds", "30", "--max-seconds", "60")
    with session(out, tmp_path / "results", *arguments) as run, chromium() as browser:
        page = browser.new_page()
        page.goto(run.url())
        page.wait_for_selector("#stages li[data-state=now]:text-is('timing')")
        page.close()
        assert run.end() == 8, run.text
    (found,) = run.measurements
    assert found["error"]["code"] == "device-lost"
    assert "the page was closed at stage 'timing'" in found["error"]["message"]


def _problem(page: Any) -> str:
    page.wait_for_selector("#problem:not([hidden])")
    return str(page.inner_text("#problem"))


def test_a_second_page_says_that_it_is_one_too_many(browser: Any, server: Server) -> None:
    first, second = browser.new_page(), browser.new_page()
    other = browser.new_page(user_agent="Another/1.0")
    with first.expect_response("**/hello") as answer:
        first.goto(server.url())
    assert answer.value.status == 200
    second.goto(server.url())
    assert "another page takes this run's measurements already: close this one" in _problem(second)
    other.goto(server.url())
    assert "this run measures in another browser" in _problem(other)
    # The first one stays the one, however often it is loaded.
    with first.expect_response("**/hello") as answer:
        first.reload()
    assert answer.value.status == 200
    assert not first.is_visible("#problem")
    first.close(run_before_unload=True)
    deadline = time.monotonic() + 60
    while server.asked:
        assert time.monotonic() < deadline, "the page did not say that it was closed"
        second.wait_for_timeout(50)
    with second.expect_response("**/hello") as answer:
        second.reload()
    assert answer.value.status == 200
    second.close()
    other.close()


def test_nobody_opens_the_page(bench: Bench) -> None:
    run = bench("--open", "--targets", "ort_web", "--wait", "0.5")
    assert run.code == 8
    (found,) = run.measurements
    assert found["error"]["code"] == "device-lost"
    assert "no browser has opened" in found["error"]["message"]


def _children(pid: int) -> list[int]:
    """Every process below one, by what /proc says."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


@pytest.mark.slow
def test_an_interrupt_ends_the_browser_too(browser_here: None, out: Path, tmp_path: Path) -> None:
    arguments = ("--targets", "ort_web", "--min-seconds", "60", "--max-seconds", "90")
    with session(out, tmp_path / "results", *arguments) as run:
        below = run.until(lambda: len(found := _children(run.process.pid)) > 4 and found)
        time.sleep(1)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.text
        assert "--resume takes the rest" in run.text
        assert "Traceback" not in run.text
        deadline = time.monotonic() + 20
        while left := [p for p in below if Path(f"/proc/{p}/exe").exists()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    assert not run.measurements


@pytest.fixture(scope="module")
def phone(adb_server: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """An emulated device. It has no browser: its ``am`` notes what it was asked to open."""
    require_tools("qemu-aarch64-static", "adb")
    with emulated_devices(tmp_path_factory.mktemp("phone"), 1) as started:
        yield started


def _am(started: Started, text: str) -> Path:
    root = started.folders[0] / "root"
    script = root / "system/bin/am"
    script.write_text(f"#!/system/bin/sh\n{text}\n")
    script.chmod(0o755)
    return root / "data/local/tmp/asked"


@pytest.mark.slow
def test_a_device_opens_the_page_through_adb(browser_here: None, phone: Started, out: Path, tmp_path: Path) -> None:
    """The page reaches this machine through the device's own port; what opens it stands in for the device's browser."""
    asked = _am(phone, 'echo "$@" > /data/local/tmp/asked')
    serial = phone.serials[0]
    with session(out, tmp_path / "results", "--serial", serial, "--targets", "ort_web") as run, chromium() as browser:
        words = run.until(lambda: asked.exists() and asked.read_text())
        assert words.startswith("start -a android.intent.action.VIEW -d http://127.0.0.1:")
        listed = subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=False).stdout
        page = browser.new_page()
        page.goto(words.split()[-1])
        assert page.evaluate("crossOriginIsolated") is True
        assert run.end(page) == 0, run.text
        port = words.split("127.0.0.1:")[1].split("/")[0]
        assert not listed or f":{port}" in listed
    (found,) = run.measurements
    assert found["status"] == "ok", found["error"]
    device = found["device"]
    assert (device["kind"], device["serial"], device["arch"]) == ("browser", serial, "wasm")
    assert device["manufacturer"] == "Edgeport"
    assert found["emulated"], "what the device says of itself holds for its browser too"
    assert found["conditions"]["before"]["battery_percent"] == 90
    with pytest.raises(OSError, match="refused"):
        _connect(int(port))


def _connect(port: int) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass


def test_a_device_without_a_browser(bench: Bench, phone: Started) -> None:
    _am(phone, "echo 'Error: Activity not started, unable to resolve Intent'; exit 0")
    run = bench("--serial", phone.serials[0], "--targets", "ort_web", "--wait", "2")
    assert run.code == 8
    (found,) = run.measurements
    assert found["error"]["code"] == "device"
    assert "opened no browser" in found["error"]["message"]
    assert "Activity not started" in found["error"]["message"]


def test_a_device_that_is_not_there(bench: Bench, adb_server: int) -> None:
    run = bench("--serial", "nothing", "--targets", "ort_web", "--wait", "0.5")
    assert run.code == 8
    assert run.measurements == []
    assert "no device has serial 'nothing'" in run.stderr
    assert os.environ["ANDROID_ADB_SERVER_PORT"] == str(adb_server)
