"""The system's Chromium, headless, driven by Playwright: a fresh page for every measurement."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import DeviceError, HarnessError, MissingToolError
from device_bench.devices.base import Conditions, Facts
from device_bench.devices.local import local_device
from device_bench.web.server import Server
from device_bench.web.ticket import Limits, Ticket

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: names under which a system has it; ``EDGEPORT_CHROMIUM`` names another.
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_VARIABLE = "EDGEPORT_CHROMIUM"
_FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-renderer-backgrounding",
    # The page asks for its memory once: without this the answer takes up to 20 s.
    "--enable-blink-features=ForceEagerMeasureMemory",
)
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
_POLL_MS = 100.0
_LAUNCH_MS = 60_000.0
_LEAVE_SECONDS = 10.0


def find_program() -> Path:
    """Where Chromium is.

    Raises:
        MissingToolError: it is not on this system.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        if shutil.which(named) is None:
            raise MissingToolError(
                f"{_VARIABLE} names '{named}', which is no program", remedy="Unset it, or correct it"
            )
        return Path(named)
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise MissingToolError("Chromium is not installed", remedy="Run: nox -s setup (or use a browser: -- --open)")


class Chromium:
    """See :class:`device_bench.web.harness.Browser`. Everything but its making happens in the thread that measures.

    Args:
        flags: further ones for Chromium.
        watch: called with each page when it is open: tests make it crash.
    """

    follows = False

    def __init__(
        self,
        server: Server,
        scratch: Path,
        *,
        software_gpu: bool = False,
        flags: Sequence[str] = (),
        watch: Callable[[Page], None] | None = None,
    ) -> None:
        self.name = "browser-chromium"
        self.server = server
        self._scratch = scratch
        self._flags = (*_FLAGS, *(SOFTWARE_GPU if software_gpu else ()), *flags)
        self._watch = watch
        self._playwright: Any = None
        self._browser: Any = None
        self._facts: Facts | None = None
        self._stop = threading.Event()
        self._closed = threading.Event()
        self._closed.set()

    def facts(self) -> Facts:
        """See the Protocol."""
        if self._facts is None:
            browser = self._ready()
            host = local_device(self._scratch).facts()
            self._facts = replace(
                host, kind="browser", serial="chromium", arch="wasm", model=f"Chromium {browser.version}"
            )
        return self._facts

    def unknown(self) -> Facts:
        """See the Protocol."""
        return Facts(kind="browser", serial="chromium", arch="wasm", machine="unknown")

    def conditions(self) -> Conditions:
        """Of the machine around it."""
        return local_device(self._scratch).conditions()

    def wait(self, timeout: float) -> bool:
        """A fresh one can always be started."""
        return True

    def close(self) -> None:
        """End it."""
        self._end()
        if self._playwright is not None:
            self._playwright.stop()
            self._playwright = None
        self._closed.set()

    def stop(self) -> None:
        """From another thread: have the one that measures leave, and wait until it has.

        Left alone, it would still be inside of Playwright when the interpreter ends, which crashes that.
        """
        self._stop.set()
        self._closed.wait(_LEAVE_SECONDS)

    def show(self, ticket: Ticket, limits: Limits) -> None:
        """See :class:`device_bench.web.harness.Browser`."""
        from playwright.sync_api import Error

        browser = self._ready()
        said: list[str] = []
        gone: list[str] = []
        try:
            context = browser.new_context(viewport={"width": 1100, "height": 900})
            page = context.new_page()
            page.on("crash", lambda _: gone.append("the page crashed"))
            page.on("close", lambda _: gone.append("the page was closed before it had finished"))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
            url = self.server.url_of(ticket)
            page.goto(url, wait_until="commit", timeout=(limits.whole or limits.silence) * 1e3)
            page.on("framenavigated", lambda frame: _left(page, frame, url, gone))
            if self._watch is not None:
                self._watch(page)
            self._wait(page, ticket, gone, limits)
            context.close()
        except Error as error:
            lost = "" if browser.is_connected() else "the browser was lost"
            why = gone[0] if gone else lost or _first(error)
            self._end()  # what is left of it is not trusted with the next page
            raise HarnessError(f"{why}{_at(ticket)}{_said(said)}") from error
        except HarnessError as error:
            self._end()
            raise HarnessError(f"{error.message}{_at(ticket)}{_said(said)}") from None

    def _wait(self, page: Any, ticket: Ticket, gone: Sequence[str], limits: Limits) -> None:
        start = time.monotonic()
        while not ticket.ended.is_set():
            if self._stop.is_set():
                raise SystemExit  # of this thread: nothing more is measured, and nothing is recorded as failed
            if gone:
                raise HarnessError(gone[0])
            late = ticket.overdue(start, limits)
            if late is not None:
                raise HarnessError(late)
            page.wait_for_timeout(_POLL_MS)  # this is where the browser's events arrive
        if not ticket.answered:
            raise HarnessError(f"the page gave up: {ticket.left or 'it was left before it had finished'}")

    def _ready(self) -> Any:
        """The browser, started when there is none."""
        if self._browser is not None and self._browser.is_connected():
            return self._browser
        program = find_program()
        try:
            from playwright.sync_api import Error, sync_playwright
        except ImportError as error:
            raise MissingToolError(f"Playwright is not installed: {error}", remedy="Run: nox -s bench-web") from error
        if self._playwright is None:
            self._closed.clear()
            self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(
                executable_path=str(program), args=list(self._flags), timeout=_LAUNCH_MS, headless=True
            )
        except Error as error:
            raise DeviceError(f"'{program}' cannot be started: {_first(error)}") from error
        return self._browser

    def _end(self) -> None:
        browser, self._browser = self._browser, None
        if browser is not None and browser.is_connected():
            browser.close()


def _left(page: Any, frame: Any, url: str, gone: list[str]) -> None:
    """The page says itself when it is left; this is for when that does not arrive."""
    if frame == page.main_frame and not frame.url.startswith(url):
        gone.append("the page was left before it had finished")


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _at(ticket: Ticket) -> str:
    return f" (its stage: {ticket.stage})" if ticket.stage else " (it never asked for its job)"


def _said(lines: Sequence[str]) -> str:
    return f"; it said: {lines[-1].splitlines()[0][:200]}" if lines else ""
