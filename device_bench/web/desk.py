"""Who measures what: the jobs of a run, and the one tab of one browser in which a person's measurements are taken."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from device_bench.web.ticket import Ticket

#: seconds that a question for the next job is kept waiting before it is answered with "not yet".
_PATIENCE = 10.0
#: seconds without a question for the next job after which nobody is there.
SILENCE = 30.0


class Desk:
    """Hands jobs to pages.

    Attributes:
        hello: how the person's browser has introduced itself; None: no page came.
        asked: when its page last asked for a job: ``time.monotonic()``, seconds; 0: it was closed.
    """

    def __init__(self) -> None:
        self.hello: dict[str, Any] | None = None
        self.asked = 0.0
        #: who measures: a tab of a browser, and the one of its documents that was heard of last.
        self._tab: str | None = None
        self._page: str | None = None
        self._tickets: dict[str, Ticket] = {}
        self._waiting: deque[Ticket] = deque()
        self._over = False
        self._changed = threading.Condition()

    def end(self) -> None:
        """There are no more jobs: who waits for one is told."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def offer(self, ticket: Ticket, *, queue: bool) -> None:
        """Let the job be taken. ``queue``: by whoever asks for the next one."""
        with self._changed:
            self._tickets[ticket.token] = ticket
            if queue:
                self._waiting.append(ticket)
            self._changed.notify_all()

    def withdraw(self, ticket: Ticket) -> None:
        """Forget the job: its token opens nothing any more."""
        with self._changed:
            self._tickets.pop(ticket.token, None)
            if ticket in self._waiting:
                self._waiting.remove(ticket)

    def ticket(self, token: str) -> Ticket | None:
        """The open job of a token."""
        return self._tickets.get(token)

    @property
    def present(self) -> bool:
        """Whether a person's page asks for jobs."""
        return self.hello is not None and time.monotonic() - self.asked < SILENCE

    def greet(self, hello: dict[str, Any]) -> str | None:
        """Let a person's page in: one tab of one browser, so that all repeats run in the same. Returns why not."""
        with self._changed:
            agent = (self.hello or hello).get("user_agent")
            if hello.get("user_agent") != agent:
                return f"this run measures in another browser ({agent}): open the page there, or start another run"
            busy = any(t.stage and not t.ended.is_set() for t in self._tickets.values())
            if self._tab is not None and hello.get("tab") != self._tab and (busy or self.present):
                return (
                    "another page takes this run's measurements already: close this one; "
                    f"or close the other, wait {SILENCE:g} s and load this one again"
                )
            self.hello, self._tab, self._page = hello, hello.get("tab"), hello.get("page")
            self.asked = time.monotonic()
            self._changed.notify_all()
            return None

    def leave(self, page: str | None = None) -> None:
        """A person's page was closed: the next one may come at once. ``page``: one that only waited."""
        with self._changed:
            if page is None or page == self._page:
                self._tab, self._page, self.asked = None, None, 0.0
                self._changed.notify_all()

    def next(self, tab: str | None, page: str | None) -> dict[str, Any] | None:
        """The next job for the page that measures; waits for one a while. None: it is another page that measures."""
        with self._changed:
            if tab is None or tab != self._tab:
                return None
            self._page, self.asked = page, time.monotonic()
            self._changed.wait_for(lambda: self._waiting or self._over or self._page != page, timeout=_PATIENCE)
            if self._page != page:  # closed, or loaded again: a job that it got would be lost
                return None
            self.asked = time.monotonic()
            if self._waiting:
                return {"job": f"{self._waiting.popleft().token}/"}
            return {"done": True} if self._over else {"wait": True}
