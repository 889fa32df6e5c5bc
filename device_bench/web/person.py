"""A browser that a person opens: here, or on an Android device."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from typing import Any

from build.errors import DeviceError, DeviceLostError, HarnessError
from build.log import say
from device_bench.devices import adb_client
from device_bench.devices.adb import adb_device
from device_bench.devices.base import Conditions, Facts, safe_name
from device_bench.web.desk import SILENCE
from device_bench.web.server import Server
from device_bench.web.ticket import Limits, Ticket

_POLL = 0.1


class OpenBrowser:
    """See :class:`device_bench.web.harness.Browser`: prints a URL, and whoever opens it measures.

    Args:
        patience: seconds to wait for the page to be opened.
    """

    follows = True

    def __init__(self, server: Server, *, patience: float) -> None:
        self.name = "browser-open"
        self.server = server
        self._patience = patience
        self._told = False

    def facts(self) -> Facts:
        """What the browser says when it has opened the page."""
        self._invite()
        if not self.wait(self._patience):
            raise DeviceLostError(f"no browser has opened {self.server.url()} within {self._patience:g} s")
        return self._describe(self.unknown(), self.server.hello or {})

    def _describe(self, facts: Facts, hello: dict[str, Any]) -> Facts:
        words = {k: v for k, v in hello.items() if isinstance(v, (str, int))}
        browser = words.get("browser") or words.get("user_agent")
        cores = words.get("cores")
        return replace(
            facts,
            model=facts.model if facts.model else str(browser)[:200] if browser else None,
            os=facts.os or str(words.get("system") or "")[:100] or None,
            cores=facts.cores or (cores if isinstance(cores, int) else None),
        )

    def unknown(self) -> Facts:
        """See the Protocol."""
        return Facts(kind="browser", serial="open", arch="wasm", machine="unknown")

    def conditions(self) -> Conditions:
        """A browser does not say."""
        return Conditions()

    def _invite(self) -> None:
        if not self._told:
            say(f"open this in the browser to measure, and leave it in front: {self.server.url()}")
            self._told = True

    def wait(self, timeout: float) -> bool:
        """Wait until a page asks for jobs."""
        deadline = time.monotonic() + timeout
        while not self.server.present:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def close(self) -> None:
        """Nothing of ours."""

    def show(self, ticket: Ticket, limits: Limits) -> None:
        """See :class:`device_bench.web.harness.Browser`."""
        start = time.monotonic()
        while not ticket.ended.wait(_POLL):
            if not ticket.stage and time.monotonic() - start > SILENCE:
                raise DeviceLostError(f"{self.name}: no page has asked for the job within {SILENCE:g} s")
            late = ticket.overdue(start, limits)
            if late is not None:
                raise HarnessError(f"{late} (its stage: {ticket.stage})")
        if not ticket.answered:
            self.server.leave()  # it has to be opened again
            why = f": {ticket.left}" if ticket.left else ""
            raise DeviceLostError(f"{self.name}: the page was closed at stage '{ticket.stage}'{why}")


class AdbBrowser(OpenBrowser):
    """The browser of an Android device: reached through ``adb reverse``, opened with an intent.

    127.0.0.1 is a secure context on the device too, so that threads work there.
    """

    def __init__(self, server: Server, serial: str, *, patience: float) -> None:
        super().__init__(server, patience=patience)
        self.name = safe_name(f"browser-{serial}")
        self._serial = serial
        self._port: int | None = None
        self._device = adb_device(serial)

    def facts(self) -> Facts:
        """The device's own, and the browser's."""
        device = self._device.facts()
        self._open()
        if not self.wait(self._patience):
            raise DeviceLostError(f"{self.name}: its browser has not opened the page within {self._patience:g} s")
        found = super()._describe(replace(device, kind="browser", arch="wasm"), self.server.hello or {})
        browser = (self.server.hello or {}).get("browser")
        return replace(found, model=f"{found.model} ({browser})" if browser else found.model)

    def unknown(self) -> Facts:
        """See the Protocol."""
        return Facts(kind="browser", serial=self._serial, arch="wasm", machine="unknown")

    def conditions(self) -> Conditions:
        """The device's."""
        return self._device.conditions()

    def wait(self, timeout: float) -> bool:
        """Wait for the page to ask; a page that has gone is opened again."""
        if self.server.hello is not None and not self.server.present:
            if not self._device.wait(timeout):
                return False
            self._open()
        return super().wait(timeout)

    def close(self) -> None:
        """Take the port back."""
        if self._port is not None:
            try:
                adb_client.reverse_remove(self._serial, self._port)
            except DeviceError as error:
                say(f"{self.name}: port {self._port} stays open on the device: {error.message}")
        self._device.close()

    def _open(self) -> None:
        # Anew each time: a device that was lost has forgotten its ports.
        self._port = adb_client.reverse(self._serial, self.server.port)
        self.server.hosts.add(f"127.0.0.1:{self._port}")
        url = self.server.url(self._port)
        intent = f"am start -a android.intent.action.VIEW -d {shlex.quote(url)}"
        done = adb_client.run_shell(self._serial, intent, timeout=30)
        text = f"{done.stdout}\n{done.stderr}".strip()
        # am ends with 0 whatever happened; its words say.
        if done.code != 0 or "Error" in text or "Exception" in text:
            raise DeviceError(
                f"{self.name}: the device opened no browser: {text.splitlines()[-1][:200] if text else done.code}",
                remedy="Install a browser on the device, or open the page by hand: -- --open.",
            )
