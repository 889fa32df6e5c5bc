"""The page of a web bundle on a host that knows nothing of it: Python's own static server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from build.bundle import archive, contents, runtimes, webpage
from build.bundle.choose import Chosen
from build.bundle.refusals import Item
from build.errors import GateError
from device_bench.web.runtime import locked
from targets import registry
from tests.results.browser import FLAGS, executable
from tests.web.support import artifact, hiding
from tests.web.test_web_page import _pictures

TOP = "digits_cnn-web-0.1.0"
_DONE = "body[data-state=done], body[data-state=failed]"


def _chosen(out: Path) -> Chosen:
    (target,) = registry.select(["ort_web"])
    items = []
    for precision in ("fp32", "int8-static"):
        found = artifact(out, "ort_web", precision)
        evidence = {"outputs": {"logits": {"max_abs": 1.0}}, "changed": [], "changed_decisions": 0, "near_ties": 0}
        value = {**found.manifest, "verification": evidence, "contract": {"opset": 20}, "narrowed": []}
        items.append(Item(target=target, precision=precision, folder=found.file.parent, manifest=value))
    return Chosen(
        platform="web", program=found.program_folder, record=found.record, items=tuple(items), rule="precisions"
    )


@pytest.fixture(scope="module")
def files(browser_here: None, out: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What ``bundle-web --harness`` packs: path in the bundle -> file."""
    os.environ.setdefault("EDGEPORT_PYTHON", sys.executable)
    parts = tmp_path_factory.mktemp("parts")
    chosen = _chosen(out)
    found, contract = contents.gather(chosen, parts)
    return {**found, **contents.harness(chosen, contract, parts)[0]}


@pytest.fixture(scope="module")
def unpacked(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that its receiver has unpacked it into."""
    folder = tmp_path_factory.mktemp("received")
    archive.write(files, folder / "bundle.zip", top=TOP)
    shutil.unpack_archive(folder / "bundle.zip", folder)
    return folder


class Visit:
    """A page that was opened and waited for, and everything that it asked for."""

    def __init__(self, browser: Any, address: str) -> None:
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.context = browser.new_context()
        self.page = self.context.new_page()
        # Of the context: workers ask too.
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.goto(address)
        self.page.wait_for_selector(_DONE, timeout=120_000)

    @property
    def state(self) -> tuple[str, str]:
        """Of the page, and of its self-test."""
        body = self.page.locator("body")
        return body.get_attribute("data-state"), body.get_attribute("data-selftest")


@pytest.fixture(scope="module")
def plain_host(unpacked: Path) -> Iterator[str]:
    """``python -m http.server``: no isolation headers, no types for new file endings."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(unpacked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"port (\d+)", process.stdout.readline())
    assert found is not None
    yield f"http://127.0.0.1:{found[1]}/{TOP}/harness/web/"
    process.kill()
    process.wait()


def test_it_checks_itself_and_asks_nobody_else(browser: Any, plain_host: str, out: Path) -> None:
    visit = Visit(browser, plain_host)
    assert visit.state == ("done", "passed"), visit.page.inner_text("#problem")
    facts = visit.page.inner_text("#facts")
    assert "calls as PyTorch answers" in facts
    assert "Threads used\n1" in facts
    assert "Cross-origin isolated\nno" in facts
    assert "one thread" in visit.page.inner_text("#notice")
    assert not visit.problems
    content, label = _pictures(out)[3]
    visit.page.set_input_files("#picture", {"name": "d.png", "mimeType": "image/png", "buffer": content})
    visit.page.wait_for_selector("#scores li:nth-child(5)")
    assert visit.page.inner_text("#predicted") == str(label)
    home = plain_host.split("harness")[0]
    assert len(visit.requests) > 20
    elsewhere = [r for r in visit.requests if not r.startswith((home, "blob:", "data:"))]
    assert not elsewhere
    visit.context.close()


def test_every_file_of_the_page_is_needed(browser: Any, plain_host: str, files: dict[str, Path]) -> None:
    visit = Visit(browser, plain_host)
    asked = {r.removeprefix(plain_host).split("?")[0] for r in visit.requests}
    packed = {f.removeprefix("harness/web/") for f in files if f.startswith("harness/web/")}
    assert packed - asked == {"index.html"}
    visit.context.close()


def test_another_artifact_is_asked_for_by_name(browser: Any, plain_host: str) -> None:
    for query, state in (("int8-static", ("done", "passed")), ("int4", ("failed", "failed"))):
        visit = Visit(browser, f"{plain_host}?artifact={query}")
        assert visit.state == state
        visit.context.close()


@pytest.fixture(scope="module")
def resolving(browser: Any) -> Iterator[Any]:
    """A browser in which an invented host name is this machine: to the browser it is any host at all."""
    rule = "--host-resolver-rules=MAP static.test 127.0.0.1"
    started = browser.browser_type.launch(executable_path=executable(), args=[*FLAGS, rule], headless=True)
    yield started
    started.close()


def test_plain_http_from_any_host(resolving: Any, plain_host: str) -> None:
    """No secure context: the browser has no SHA-256 of its own, no isolation, no threads; the page says so."""
    visit = Visit(resolving, plain_host.replace("127.0.0.1", "static.test"))
    assert visit.page.evaluate("[isSecureContext, typeof crypto.subtle]") == [False, "undefined"]
    assert visit.state == ("done", "passed"), visit.page.inner_text("#problem")
    assert "Threads used\n1" in visit.page.inner_text("#facts")
    notice = visit.page.inner_text("#notice")
    assert "plain http" in notice
    assert "one thread" in notice
    assert not visit.problems
    visit.context.close()


def test_a_changed_file_is_noticed_over_plain_http_too(resolving: Any, unpacked: Path, tmp_path: Path) -> None:
    folder = _spoil(unpacked, tmp_path, "models/ort_web/fp32/model.onnx", lambda b: b[:-1] + b"!")
    with _serving(folder) as port:
        visit = Visit(resolving, f"http://static.test:{port}/{TOP}/harness/web/")
        assert visit.state == ("failed", "failed")
        assert "not the file that the bundle was made with" in visit.page.inner_text("#problem")
        visit.context.close()


def test_a_page_that_was_hidden_shows_no_figures(browser: Any, plain_host: str) -> None:
    context = browser.new_context()
    context.add_init_script(f"({hiding('warm-up')})()")
    page = context.new_page()
    page.goto(plain_host)
    page.wait_for_selector(_DONE, timeout=120_000)
    assert page.locator("body").get_attribute("data-state") == "failed"
    assert page.locator("body").get_attribute("data-selftest") == "passed", "its values are right all the same"
    assert "the page was hidden during the measurement: bring it to the front" in page.inner_text("#problem")
    assert page.locator("#figures div").count() == 0
    context.close()


def test_a_page_in_the_background_waits_to_be_seen(browser: Any, plain_host: str) -> None:
    context = browser.new_context()
    context.add_init_script(f"({hiding(None)})()")
    page = context.new_page()
    page.goto(plain_host)
    page.wait_for_selector("#state:has-text('bring this page to the front')", timeout=120_000)
    page.evaluate("showAgain()")
    page.wait_for_selector(_DONE, timeout=120_000)
    assert page.locator("body").get_attribute("data-state") == "done", page.inner_text("#problem")
    context.close()


class _Isolated(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def _serving(folder: Path | str) -> Iterator[int]:
    """A host with isolation headers; gives its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Isolated, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def test_threads_where_the_host_allows_them(browser: Any, unpacked: Path) -> None:
    with _serving(unpacked) as port:
        visit = Visit(browser, f"http://127.0.0.1:{port}/{TOP}/harness/web/?threads=2")
        assert visit.state == ("done", "passed"), visit.page.inner_text("#problem")
        assert "Threads used\n2" in visit.page.inner_text("#facts")
        assert not visit.page.is_visible("#notice")
        visit.context.close()


def _spoil(unpacked: Path, tmp_path: Path, name: str, change: Any) -> str:
    copy = tmp_path / TOP
    shutil.copytree(unpacked / TOP, copy)
    path = copy / name
    path.write_bytes(change(path.read_bytes()))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("models/ort_web/fp32/model.onnx", lambda b: b[:-1] + b"!", "not the file that the bundle was made with"),
        ("selftest/000/out0.bin", lambda b: b[:-1] + bytes([b[-1] ^ 0x40]), "elements beyond tolerance"),
        ("harness/web/page.json", lambda b: b.replace(b"model.onnx", b"other.onnx"), "fetch"),
    ],
)
def test_a_changed_file_fails_the_self_test(
    browser: Any, unpacked: Path, tmp_path: Path, name: str, change: Any, words: str
) -> None:
    folder = _spoil(unpacked, tmp_path, name, change)
    with _serving(folder) as port:
        visit = Visit(browser, f"http://127.0.0.1:{port}/{TOP}/harness/web/")
        assert visit.state == ("failed", "failed")
        assert words in visit.page.inner_text("#problem")
        visit.context.close()


def test_the_policy_stands_in_the_page(files: dict[str, Path]) -> None:
    text = files["harness/web/index.html"].read_text()
    assert '<meta http-equiv="Content-Security-Policy"' in text
    policy = text.split('content="')[1].split('"')[0]
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy
    assert "'unsafe-eval'" not in policy.replace("'wasm-unsafe-eval'", "")
    assert "http" not in policy
    # It comes before anything that it speaks of.
    assert text.index("http-equiv") < text.index("stylesheet") < text.index("<script")


def test_the_size_is_kept_to(
    out: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    size = sum(p.stat().st_size for n, p in files.items() if n.startswith("harness/web/"))
    assert 14_000_000 < size <= webpage.BUDGET
    monkeypatch.setattr(webpage, "BUDGET", size - 1)
    with pytest.raises(GateError, match=f"have {size} bytes, the budget is {size - 1}"):
        webpage.make(_chosen(out), {"decision_output": "logits"}, tmp_path)


def test_the_page_and_the_snippets_speak_of_one_runtime(files: dict[str, Path]) -> None:
    page = json.loads(files["harness/web/page.json"].read_text())
    assert page["runtime"]["version"] == locked("onnxruntime-web") == runtimes.facts("ort_web").versions["web"]
    assert sorted(n for n in files if "/runtime/" in n) == [
        "harness/web/runtime/ort-wasm-simd-threaded.wasm",
        "harness/web/runtime/ort.wasm.bundle.min.js",
    ]
