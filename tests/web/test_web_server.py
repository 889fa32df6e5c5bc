"""The server of the pages: who gets what, and who gets nothing."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from device_bench.web.server import Server
from device_bench.web.ticket import Limits, Ticket


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Server, Ticket]]:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "listed.js").write_text("listed")
    folder = tmp_path / "uploads"
    folder.mkdir()
    ticket = Ticket(
        files={"listed.js": tmp_path / "listed.js", "index.html": b"page"},
        uploads={"result": 100, "outputs": 50},
        folder=folder,
    )
    with Server({"index.html": b"lobby"}, {"Content-Security-Policy": "default-src 'none'"}) as server:
        server.offer(ticket, queue=False)
        yield server, ticket


def _ask(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    found = response.status, response.read(), response.headers
    connection.close()
    return found


def test_a_page_and_its_files(served: tuple[Server, Ticket]) -> None:
    server, ticket = served
    home = f"/{server.token}/{ticket.token}/"
    assert _ask(server, "GET", home)[:2] == (200, b"page")
    status, body, headers = _ask(server, "GET", f"{home}listed.js")
    assert (status, body) == (200, b"listed")
    assert headers["Content-Type"].startswith("text/javascript")
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert headers["Content-Security-Policy"] == "default-src 'none'"
    assert _ask(server, "GET", f"/{server.token}/")[:2] == (200, b"lobby")


@pytest.mark.parametrize(
    "path",
    ["{home}secret", "{home}../../secret", "{home}%2e%2e/secret", "{home}uploads/result", "{home}/etc/passwd"],
)
def test_only_what_is_listed(served: tuple[Server, Ticket], path: str) -> None:
    server, ticket = served
    status, body, _ = _ask(server, "GET", path.format(home=f"/{server.token}/{ticket.token}/"))
    assert status in (403, 404)
    assert b"secret" not in body
    assert b"root:" not in body


def test_nothing_without_the_token(served: tuple[Server, Ticket]) -> None:
    server, ticket = served
    other = server.token[:-1] + ("y" if server.token.endswith("x") else "x")
    for path in ("/", f"/{ticket.token}/", f"/{server.token}", f"/{other}/{ticket.token}/", "/x/y/z"):
        assert _ask(server, "GET", path)[0] == 403, path
    assert _ask(server, "GET", f"/{server.token}/{server.token}/")[0] == 404


def test_nothing_under_another_name(served: tuple[Server, Ticket]) -> None:
    """A name of somebody else's that resolves to loopback is not this server."""
    server, ticket = served
    home = f"/{server.token}/{ticket.token}/"
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", "127.0.0.1:1"):
        assert _ask(server, "GET", home, Host=host)[0] == 403, host
    assert _ask(server, "GET", home, Host=f"localhost:{server.port}")[0] == 200


def test_only_the_page_itself_may_send(served: tuple[Server, Ticket]) -> None:
    server, ticket = served
    result = f"/{server.token}/{ticket.token}/result"
    assert _ask(server, "POST", result, b"{}", Origin="https://evil.example")[0] == 403
    assert not ticket.answered
    assert _ask(server, "POST", result, b"{}", Origin=f"http://127.0.0.1:{server.port}")[0] == 200
    assert ticket.answered
    assert (ticket.folder / "result").read_bytes() == b"{}"


def test_a_job_is_answered_once(served: tuple[Server, Ticket]) -> None:
    server, ticket = served
    home = f"/{server.token}/{ticket.token}/"
    assert _ask(server, "POST", f"{home}outputs", b"first")[0] == 200
    assert _ask(server, "POST", f"{home}outputs", b"again")[0] == 404
    assert _ask(server, "POST", f"{home}result", b"first")[0] == 200
    assert _ask(server, "POST", f"{home}result", b"again")[0] == 410
    assert (ticket.folder / "outputs").read_bytes() == b"first"
    assert (ticket.folder / "result").read_bytes() == b"first"
    server.withdraw(ticket)
    assert _ask(server, "GET", home)[0] == 404


def test_what_is_too_large_ends_the_job(served: tuple[Server, Ticket]) -> None:
    server, ticket = served
    status, body, _ = _ask(server, "POST", f"/{server.token}/{ticket.token}/outputs", b"x" * 51)
    assert (status, body) == (413, b"'outputs' may have 50 bytes")
    assert ticket.ended.is_set()
    assert not ticket.answered
    assert not list(ticket.folder.iterdir())


def test_no_other_methods(served: tuple[Server, Ticket]) -> None:
    server, ticket = served
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert _ask(server, method, f"/{server.token}/{ticket.token}/listed.js")[0] == 501


def _hello(server: Server, tab: str, page: str = "p", agent: str = "Chromium") -> tuple[int, bytes]:
    body = json.dumps({"user_agent": agent, "tab": tab, "page": page}).encode()
    return _ask(server, "POST", f"/{server.token}/hello", body)[:2]


def _next(server: Server, tab: str, page: str = "p") -> tuple[int, bytes]:
    return _ask(server, "GET", f"/{server.token}/next?tab={tab}&page={page}")[:2]


@pytest.fixture
def visited(served: tuple[Server, Ticket], monkeypatch: pytest.MonkeyPatch) -> tuple[Server, Ticket]:
    """A server that a person's tab 'a' has opened; nobody waits long for a job."""
    monkeypatch.setattr("device_bench.web.desk._PATIENCE", 0.05)
    server, ticket = served
    assert _hello(server, "a")[0] == 200
    return server, ticket


def test_a_second_page_gets_no_jobs(visited: tuple[Server, Ticket]) -> None:
    """The repeats of a cell would come from two browsers, under one name."""
    server, ticket = visited
    server.offer(ticket, queue=True)
    status, text = _hello(server, "b")
    assert status == 409
    assert text.startswith(b"another page takes this run's measurements already: close this one")
    assert _next(server, "b")[0] == 409
    assert _ask(server, "GET", f"/{server.token}/next")[0] == 409
    assert json.loads(_next(server, "a")[1]) == {"job": f"{ticket.token}/"}
    assert server.hello is not None
    assert server.hello["tab"] == "a"


def test_a_second_page_is_refused_while_the_first_measures(
    visited: tuple[Server, Ticket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for nothing meanwhile, for minutes."""
    server, ticket = visited
    _ask(server, "GET", f"/{server.token}/{ticket.token}/")
    server.asked -= 1000.0
    assert not server.present
    assert _hello(server, "b")[0] == 409
    ticket.ended.set()
    assert _hello(server, "b")[0] == 200
    assert _next(server, "a")[0] == 409, "it was away too long"


def test_another_browser_is_refused_even_when_the_first_has_gone(visited: tuple[Server, Ticket]) -> None:
    server, _ = visited
    server.leave()
    status, text = _hello(server, "b", agent="Firefox")
    assert status == 409
    assert text.startswith(b"this run measures in another browser (Chromium)")
    assert _hello(server, "b")[0] == 200


def test_a_page_that_is_closed_makes_room_at_once(visited: tuple[Server, Ticket]) -> None:
    server, ticket = visited
    assert _ask(server, "POST", f"/{server.token}/bye", b"another document")[0] == 200
    assert _hello(server, "b")[0] == 409
    assert _ask(server, "POST", f"/{server.token}/bye", b"p")[0] == 200
    assert _hello(server, "b")[0] == 200
    _ask(server, "GET", f"/{server.token}/{ticket.token}/")
    assert _hello(server, "c")[0] == 409
    assert _ask(server, "POST", f"/{server.token}/{ticket.token}/closed", b"")[0] == 200
    assert _hello(server, "c")[0] == 200


def test_a_page_that_was_loaded_again_leaves_no_job_to_its_old_self(
    visited: tuple[Server, Ticket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ticket = visited
    old: list[Any] = []
    monkeypatch.setattr("device_bench.web.desk._PATIENCE", 20.0)
    server.asked = 0.0
    waiting = threading.Thread(target=lambda: old.append(_next(server, "a", "p")))
    waiting.start()
    while not server.asked:
        time.sleep(0.01)
    assert _hello(server, "a", "q")[0] == 200
    server.offer(ticket, queue=True)
    waiting.join(20)
    assert [status for status, _ in old] == [409]
    assert json.loads(_next(server, "a", "q")[1]) == {"job": f"{ticket.token}/"}


def test_it_listens_on_loopback_only(served: tuple[Server, Ticket]) -> None:
    server, _ = served
    assert server._server.server_address[0] == "127.0.0.1"


def test_a_page_is_waited_for_as_long_as_it_says_that_it_goes_on(
    served: tuple[Server, Ticket], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU in software takes many minutes for an evaluation set; a page that hangs says nothing more."""
    server, ticket = served
    now = [ticket.heard]
    monkeypatch.setattr("device_bench.web.ticket.time", SimpleNamespace(monotonic=lambda: now[0]))
    patient, bounded = Limits(silence=300.0), Limits(silence=300.0, whole=1000.0)
    since = now[0]
    for done in range(1, 21):
        now[0] += 299.0
        assert ticket.overdue(since, patient) is None
        assert _ask(server, "POST", f"/{server.token}/{ticket.token}/stage", b"evaluation, %d of 40" % done)[0] == 200
    assert ticket.stage == "evaluation, 20 of 40"
    assert "the page's stage: evaluation, 20 of 40" in capsys.readouterr().err
    assert ticket.overdue(since, bounded) == "the page had not finished after 1000 s"
    now[0] += 301.0
    assert ticket.overdue(since, patient) == "the page has said nothing for 300 s"
