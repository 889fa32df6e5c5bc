"""The page's modules whose results can be compared with other programs': resizing, files, the loop, the policy."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_bench.web import page
from device_bench.web.runtime import WEB, runtime
from device_bench.web.server import Server
from device_bench.web.ticket import Ticket
from tests.web.support import artifact

_TOOLS = {f.name: f for f in WEB.glob("*.js")}


@pytest.fixture
def tools(browser: Any, server: Server, tmp_path: Path) -> Iterator[Any]:
    """An empty page that may import the modules."""
    files: dict[str, Path | bytes] = {"index.html": b"<!doctype html><title>tools</title>", **_TOOLS}
    ticket = Ticket(files=files, uploads={}, folder=tmp_path)
    server.offer(ticket, queue=False)
    opened = browser.new_page()
    opened.goto(server.url_of(ticket))
    yield opened
    opened.close()


_RESIZE = """async ([text, width, height, channels, toWidth, toHeight, method]) => {
  const { resize } = await import(new URL('picture.js', document.baseURI));
  const pixels = Uint8ClampedArray.from(atob(text), (c) => c.charCodeAt(0));
  return Array.from(resize(pixels, width, height, channels, toWidth, toHeight, method));
}"""


@pytest.mark.parametrize(
    ("size", "to", "method"),
    [
        ((301, 200), (224, 224), "bilinear"),
        ((640, 427), (224, 224), "bilinear"),
        ((100, 80), (224, 224), "bilinear"),
        ((32, 32), (8, 8), "box"),
        ((131, 77), (8, 8), "box"),
        ((224, 300), (224, 224), "bilinear"),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_resized_as_pillow_does(
    tools: Any, size: tuple[int, int], to: tuple[int, int], method: str, channels: int
) -> None:
    import base64

    import numpy as np
    from PIL import Image

    width, height = size
    shape = (height, width) if channels == 1 else (height, width, 3)
    pixels = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    filters = {"bilinear": Image.Resampling.BILINEAR, "box": Image.Resampling.BOX}
    want = np.asarray(Image.fromarray(pixels).resize(to, filters[method])).astype(int).ravel()
    text = base64.b64encode(pixels.tobytes()).decode()
    got = np.array(tools.evaluate(_RESIZE, [text, width, height, channels, *to, method]))
    np.testing.assert_array_equal(got, want)


def test_the_pages_own_sha256_is_sha256(tools: Any) -> None:
    """What a page takes that came over plain http."""
    lengths = [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1 << 20]
    found = tools.evaluate(
        """async (lengths) => {
          const { digest } = await import(new URL('sha256.js', document.baseURI));
          return lengths.map((n) => Array.from(digest(Uint8Array.from({ length: n }, (_, i) => (i * 31 + 7) % 251))));
        }""",
        lengths,
    )
    for length, digest in zip(lengths, found, strict=True):
        content = bytes((i * 31 + 7) % 251 for i in range(length))
        assert bytes(digest).hex() == hashlib.sha256(content).hexdigest(), length


_HALVES = [0.0, -0.0, 1.0, -2.5, 65504.0, 2**-24, 0.333251953125]


def test_half_precision_is_compared_as_numbers(tools: Any) -> None:
    """As raw bits, which files hold, and as the Float16Array that runtimes return where the browser has it."""
    import numpy as np

    bits = np.array(_HALVES, np.float16).view(np.uint16).tolist()
    raw, typed, apart = tools.evaluate(
        """async ([bits, values]) => {
          const { compare } = await import(new URL('compare.js', document.baseURI));
          const { numbers } = await import(new URL('half.js', document.baseURI));
          const limit = { atol: 1e-3, rtol: 0, scale: 0 };
          const of = (data) => ({ dtype: 'F16', dims: [data.length], data });
          const want = of(Uint16Array.from(bits));
          if (typeof Float16Array === 'undefined') throw new Error('this Chromium is too old for the test');
          const typed = of(Float16Array.from(values));
          const wrong = of(Float16Array.from(values, (x) => x + 0.5));
          const text = [compare(typed, want, limit).problem, compare(wrong, want, limit).problem];
          return [Array.from(numbers(want)), Array.from(numbers(typed)), text];
        }""",
        [bits, _HALVES],
    )
    assert raw == typed == _HALVES
    assert apart == [None, "has 6 elements beyond tolerance"]


def test_a_model_with_half_precision_outputs(browser: Any, server: Server, tmp_path: Path) -> None:
    """ONNX Runtime itself: its outputs pass the self-test's comparison and are written as they are."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper
    from safetensors.numpy import load

    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)
    ends = [helper.make_tensor_value_info(n, t, [7]) for n, t in (("x", TensorProto.FLOAT), ("y", TensorProto.FLOAT16))]
    graph = helper.make_graph([cast], "half", [ends[0]], [ends[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    engine = runtime("ort_web", "wasm", 1)
    empty = b"<!doctype html><title>tools</title>"
    files: dict[str, Path | bytes] = {"index.html": empty, **_TOOLS, **engine.files, "m": model.SerializeToString()}
    ticket = Ticket(files=files, uploads={}, folder=tmp_path)
    server.offer(ticket, queue=False)
    opened = browser.new_page()
    opened.goto(server.url_of(ticket))
    bits = np.array(_HALVES, np.float16).view(np.uint16).tolist()
    values, problem, file = opened.evaluate(
        """async ([options, values, bits]) => {
          const at = (name) => import(new URL(name, document.baseURI));
          const [{ engine }, { compare }] = [await at('ort.js'), await at('compare.js')];
          const [{ numbers }, { write }] = [await at('half.js'), await at('safetensors.js')];
          const made = await engine({ ...options, provider: 'wasm', threads: 1 });
          await made.create(new Uint8Array(await (await fetch('m')).arrayBuffer()));
          const x = { dtype: 'F32', dims: [7], data: Float32Array.from(values) };
          const call = await made.prepare({ id: 'a', entry: 'forward' }, { x });
          const { y } = await call.outputs(await call.run());
          const want = { dtype: 'F16', dims: [7], data: Uint16Array.from(bits) };
          const file = new Uint8Array(await new Blob(write({ y })).arrayBuffer());
          const limit = { atol: 0, rtol: 0, scale: 0 };
          return [Array.from(numbers(y)), compare(y, want, limit).problem, Array.from(file)];
        }""",
        [dict(engine.options), _HALVES, bits],
    )
    opened.close()
    assert (values, problem) == (_HALVES, None)
    np.testing.assert_array_equal(load(bytes(file))["y"], np.array(_HALVES, np.float16))


def test_safetensors_are_read_and_written_as_python_does(tools: Any, tmp_path: Path) -> None:
    import base64

    import numpy as np
    from safetensors.numpy import load, save

    rng = np.random.default_rng(1)
    dtypes = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
    tensors = {f"t/{d}": (rng.random((2, 3)) * 100).astype(d) for d in dtypes} | {"empty": np.zeros((0, 4), "float32")}
    text = base64.b64encode(save(tensors)).decode()
    back = tools.evaluate(
        """async (text) => {
          const { read, write } = await import(new URL('safetensors.js', document.baseURI));
          const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
          const file = await new Blob(write(read(bytes.buffer))).arrayBuffer();
          return Array.from(new Uint8Array(file));
        }""",
        text,
    )
    got = load(bytes(back))
    assert set(got) == set(tensors)
    for name, value in tensors.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value)


def test_the_clock_is_looked_at(tools: Any) -> None:
    found = tools.evaluate(
        "async () => (await import(new URL('measure.js', document.baseURI))).timer()",
    )
    assert 0 < found["step"] <= 100_000
    assert 0 < found["cost"] < 1_000_000


def test_the_loop_keeps_to_its_settings(tools: Any) -> None:
    """Least runs, least seconds, most runs; what the page draws meanwhile is no part of the times."""
    found = tools.evaluate(
        """async () => {
          const { measure } = await import(new URL('measure.js', document.baseURI));
          const run = () => { const end = performance.now() + 2; while (performance.now() < end); return 1; };
          const wait = () => new Promise((resolve) => setTimeout(resolve, 150));
          const most = { max_runs: 1e6, max_seconds: 9 };
          const base = { warmup_runs: 2, warmup_seconds: 0, min_runs: 3, min_seconds: 0.5, ...most };
          const done = await measure(async () => run(), () => {}, base, wait);
          const few = await measure(async () => run(), () => {}, { ...base, max_runs: 4 }, async () => {});
          const short = await measure(async () => run(), () => {}, { ...base, max_seconds: 0.02 }, async () => {});
          return [done, few, short];
        }"""
    )
    done, few, short = found
    assert done["warmup"]["runs"] == 2
    assert sum(done["samples_ns"]) <= done["loop_ns"] + 1e6 * len(done["samples_ns"]) * 0.1
    assert 0.5e9 <= done["loop_ns"] < 0.9e9 + 0.1 * sum(done["samples_ns"])
    assert min(done["samples_ns"]) >= 1.9e6
    assert len(few["samples_ns"]) == 4
    assert 1 <= len(short["samples_ns"]) < 20


def test_a_tflite_is_fixed_only_where_it_is_dynamic(tools: Any, out: Path) -> None:
    import base64

    content = artifact(out, "litert").file.read_bytes()
    fix = """async ([text, shapes]) => {
      const { fixShapes } = await import(new URL('tflite.js', document.baseURI));
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const { bytes: made, fixed } = fixShapes(bytes, 'serving_default', shapes);
      let changed = 0;
      for (let i = 0; i < bytes.length; i++) changed += bytes[i] !== made[i];
      return { fixed, changed, length: made.length };
    }"""
    text = base64.b64encode(content).decode()
    found = tools.evaluate(fix, [text, {"image": [7, 1, 8, 8], "logits": [7, 10]}])
    assert found["fixed"] == ["image [-1, 1, 8, 8] -> [7, 1, 8, 8]", "logits [-1, 10] -> [7, 10]"]
    assert found["length"] == len(content)
    # Two tensors, each with a -1 (four bytes of 255) and the size that stood for it (one byte of four changes).
    assert 0 < found["changed"] <= 10
    with pytest.raises(Exception, match="is not known before the model runs"):
        tools.evaluate(fix, [text, {"image": [7, 1, 8, 8], "logits": None}])


def test_the_harness_has_a_version_of_its_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "web"
    shutil.copytree(WEB, copied)
    real = page.version()
    monkeypatch.setattr(page, "WEB", copied)
    assert page.version() == real
    for name in ("measure.js", "style.css", "package-lock.json"):
        before = page.version()
        (copied / name).write_text((copied / name).read_text() + "\n")
        assert page.version() != before, name
    assert len(real) == 16


def test_the_lock_file_pins_every_package() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    wanted = json.loads((WEB / "package.json").read_text())["dependencies"]
    packages = {n.removeprefix("node_modules/"): p for n, p in lock["packages"].items() if n}
    assert {n: packages[n]["version"] for n in wanted} == wanted
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, "a registry's address has no place here"
