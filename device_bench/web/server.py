"""Hands the page out on loopback, and takes back what it measured. Standard library only.

Whoever wants anything must know the run's token and name this very host and port: another user's program, a web page of
another origin and a name that resolves to loopback all get nothing. What is handed out is a list, not a folder.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urlsplit

from build.log import say
from device_bench.web.desk import Desk
from device_bench.web.ticket import Ticket

#: what of a page's words is kept: its stage, its reason for leaving, its introduction.
_SMALL = 16 << 10
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
}
#: isolation makes the clock finer and threads possible; the rest keeps the page from being used by others.
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(Desk):
    """The loopback server of one run.

    Args:
        lobby: path -> content of the page that waits for jobs, where a person opens one.
        headers: further ones.
    """

    def __init__(self, lobby: Mapping[str, Path | bytes], headers: Mapping[str, str]) -> None:
        super().__init__()
        self.token = secrets.token_urlsafe(24)
        self.lobby = lobby
        self.headers = {**HEADERS, **headers}
        self._server = _Http(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.port = int(self._server.server_address[1])
        #: names under which it may be asked; a device has another port that leads here.
        self.hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        # Whoever waits for the next job is told that there is none, and not cut off.
        time.sleep(0.3 if self.asked else 0.0)
        self._server.shutdown()
        self._server.server_close()

    def url(self, port: int | None = None) -> str:
        """Of the page that waits for jobs; ``port``: one of a device that leads here."""
        return f"http://127.0.0.1:{port or self.port}/{self.token}/"

    def url_of(self, ticket: Ticket) -> str:
        """Of a job's page."""
        return f"{self.url()}{ticket.token}/"


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    owner: Server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "edgeport"
    sys_version = ""
    timeout = 120
    server: _Http

    def do_GET(self) -> None:
        """A file of the lobby or of a job's page, or the next job."""
        parts = self._parts()
        if parts is None:
            return
        owner = self.server.owner
        if parts == ["next"]:
            query = dict(parse_qsl(urlsplit(self.path).query))
            found = owner.next(query.get("tab"), query.get("page"))
            if found is None:
                self._refuse(
                    HTTPStatus.CONFLICT,
                    "this page takes this run's measurements no more: close it, or load the start page again",
                )
            else:
                self._json(found)
            return
        if len(parts) == 1:
            self._file(owner.lobby, parts[0] or "index.html")
            return
        ticket = owner.ticket(parts[0])
        if ticket is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such job, or it is over")
            return
        if not ticket.stage:
            ticket.at("opening")
        self._file(ticket.files, "/".join(parts[1:]) or "index.html")

    def do_POST(self) -> None:
        """What a page sends."""
        parts = self._parts()
        if parts is None:
            return
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc not in self.server.owner.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "from another origin")
            return
        if parts in (["hello"], ["bye"]):
            body = self._small()
            if body is None:
                return
            if parts == ["hello"]:
                self._hello(body)
            else:
                self.server.owner.leave(body.decode(errors="replace"))
                self._json({})
            return
        ticket = self.server.owner.ticket(parts[0]) if len(parts) == 2 else None
        if ticket is None or ticket.answered:
            self._refuse(HTTPStatus.GONE, "there is no such job, or it is over")
        elif parts[1] in ("stage", "closed"):
            body = self._small()
            if body is not None:
                self._note(ticket, parts[1], body.decode(errors="replace"))
        elif parts[1] in ticket.uploads and parts[1] not in ticket.received:
            self._upload(ticket, parts[1])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "nothing of that name is wanted")

    def _parts(self) -> list[str] | None:
        """The path below the run's token; None: refused already."""
        owner = self.server.owner
        if self.headers.get("Host") not in owner.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "another host")
            return None
        parts = urlsplit(self.path).path.split("/")[1:]
        if len(parts) < 2 or not secrets.compare_digest(parts[0].encode(), owner.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "another token")
            return None
        return parts[1:]

    def _note(self, ticket: Ticket, what: str, text: str) -> None:
        if what == "stage":
            if ticket.at("".join(c for c in text[:40] if c.isprintable())):
                say(f"the page's stage: {ticket.stage}")
        else:
            ticket.left = text[:500]
            self.server.owner.leave()
            ticket.ended.set()
        self._json({})

    def _hello(self, body: bytes) -> None:
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._refuse(HTTPStatus.BAD_REQUEST, "not JSON")
            return
        why_not = self.server.owner.greet(value)
        if why_not is None:
            self._json({})
        else:
            self._refuse(HTTPStatus.CONFLICT, why_not)

    def _length(self) -> int:
        text = self.headers.get("Content-Length") or ""
        return int(text) if text.isdigit() else -1

    def _small(self) -> bytes | None:
        length = self._length()
        if not 0 <= length <= _SMALL:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long")
            return None
        return self.rfile.read(length)

    def _upload(self, ticket: Ticket, name: str) -> None:
        length = self._length()
        if not 0 <= length <= ticket.uploads[name]:
            ticket.left = f"the page sent {length} bytes as '{name}', which may have {ticket.uploads[name]}"
            ticket.ended.set()
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"'{name}' may have {ticket.uploads[name]} bytes")
            return
        left = length
        with (ticket.folder / name).open("wb") as stream:
            while left:
                data = self.rfile.read(min(left, 1 << 20))
                if not data:
                    self.close_connection = True
                    return
                stream.write(data)
                left -= len(data)
        ticket.received.add(name)
        self._json({})
        if name == "result":
            ticket.ended.set()

    def _file(self, files: Mapping[str, Path | bytes], name: str) -> None:
        found = files.get(name)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "no such file")
            return
        try:
            stream: IO[bytes] = BytesIO(found) if isinstance(found, bytes) else found.open("rb")
            size = len(found) if isinstance(found, bytes) else found.stat().st_size
        except OSError as error:
            say(f"cannot hand out '{name}': {error.strerror or error}")
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the file cannot be read")
            return
        with stream:
            self._head(HTTPStatus.OK, _TYPES.get(Path(name).suffix, "application/octet-stream"), size)
            shutil.copyfileobj(stream, self.wfile, 1 << 20)

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._head(HTTPStatus.OK, _TYPES[".json"], len(body))
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = why.encode()
        self.close_connection = True  # what it may still be sending is not read
        self._head(status, "text/plain; charset=utf-8", len(body))
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        for name, value in self.server.owner.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: requests are no news."""

    def handle(self) -> None:
        """As always; a page that goes away while it is answered is no fault of ours."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
