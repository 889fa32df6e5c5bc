"""The system's Chromium, driven by Playwright: nothing is downloaded. Skips, with the reason, where there is none."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
#: --no-sandbox: containers and root have none to offer; the pages are files that a test has just written.
FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--force-color-profile=srgb",
)


def executable() -> str:
    """The browser's path."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser on this machine ({', '.join(NAMES)}): nox -s setup installs one")
    return found


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A running browser (``playwright.sync_api.Browser``) that has no network."""
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS), headless=True)
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page from a file, with all that went wrong in it.

    Attributes:
        page: ``playwright.sync_api.Page``.
        errors: console errors, uncaught exceptions and dialogs.
        requests: addresses that it asked for beside its own.
    """

    def __init__(self, browser: Any, file: Path, *, width: int, height: int = 900, dark: bool = False, **more: Any):
        self.errors: list[str] = []
        self.requests: list[str] = []
        scheme = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, **more
        )
        context.set_default_timeout(300_000)  # a slow machine is no failure
        self.page = context.new_page()
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda r: self.requests.append(r.url) if r.url != file.as_uri() else None)
        self.page.goto(file.as_uri())

    def _dialog(self, dialog: Any) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def close(self) -> None:
        """Close the page and its context."""
        self.page.context.close()
