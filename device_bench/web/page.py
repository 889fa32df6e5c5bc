"""The page's files: what the harness serves for a job, and what a bundle holds."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from build.cache import key_of, list_files, sha256_file
from device_bench.web.runtime import WEB

#: LiteRT.js names a package where a browser wants a path.
_IMPORTS = json.dumps({"imports": {"@litertjs/wasm-utils": "./runtime/wasm-utils.js"}})
_SHARED = (
    *("style.css", "checks.js", "environment.js", "front.js", "half.js", "measure.js", "picture.js", "plot.js"),
    *("sha256.js", "view.js"),
)
_BENCH = ("bench.js", "follow.js", "safetensors.js")
ENGINES = {"ort_web": ("ort.js",), "litert": ("litert.js", "tflite.js")}
#: what a page may do: run its own scripts and WebAssembly, start workers, talk to where it came from. Nothing else.
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'{extra}; worker-src 'self' blob:; connect-src 'self'; "
    "img-src 'self' data: blob:; style-src 'self'; base-uri 'none'; form-action 'none'"
)


def version() -> str:
    """Names the web harness: its own text and the runtimes that it pins."""
    return key_of(files={str(p): sha256_file(WEB / p) for p in list_files(WEB)})[:16]


def policy(inline: str | None = None) -> str:
    """The content security policy; ``inline``: the text of the one script that stands in the page itself."""
    extra = ""
    if inline is not None:
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        extra = f" 'sha256-{digest}'"
    return _POLICY.format(extra=extra)


def header_policy() -> str:
    """Of the pages that the lab serves: sent as a header, which a page can't lack."""
    return f"{policy(_IMPORTS)}; frame-ancestors 'none'"


def html(script: str, *, imports: bool = False, meta_policy: bool = False) -> bytes:
    """The page that starts with ``script``.

    Args:
        imports: with the map that LiteRT.js needs.
        meta_policy: the policy stands in the page: a host that sends no headers can't send one.
    """
    text = (WEB / "index.html").read_text(encoding="utf-8")
    marks = {
        "<!--policy-->": f'<meta http-equiv="Content-Security-Policy" content="{policy()}">' if meta_policy else "",
        "<!--imports-->": f'<script type="importmap">{_IMPORTS}</script>' if imports else "",
        "<!--script-->": f'<script type="module" src="{script}"></script>',
    }
    for mark, value in marks.items():
        assert mark in text
        text = text.replace(f"{mark}\n", f"{value}\n" if value else "")
    return text.encode()


def _named(*names: str) -> dict[str, Path | bytes]:
    return {name: WEB / name for name in names}


def lobby() -> dict[str, Path | bytes]:
    """The page that waits for jobs."""
    return {"index.html": html("lobby.js"), **_named("lobby.js", "follow.js", *_SHARED)}


def bench(target: str) -> dict[str, Path | bytes]:
    """The page of a job, without the job and the runtime."""
    return {
        "index.html": html("bench.js", imports=target == "litert"),
        **_named(*_BENCH, *_SHARED, *ENGINES[target]),
    }


def bundled() -> dict[str, Path | bytes]:
    """The page of a bundle, without what it runs: it works from any folder of any static host."""
    return {
        "index.html": html("bundle.js", meta_policy=True),
        **_named("bundle.js", "compare.js", *_SHARED, *ENGINES["ort_web"]),
    }
