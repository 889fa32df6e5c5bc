"""The page's modules whose results can be compared with other programs': resizing, files, the loop, the policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_bench.web import page
from device_bench.web.pictures import picture_spec
from device_bench.web.runtime import WEB
from device_bench.web.server import Server
from device_bench.web.ticket import Ticket
from targets.contract import DynamicDim, Signature, TensorSpec
from tests.web.support import PREPROCESSING, artifact

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


def _signature(
    dtype: str = "float32", shape: tuple[Any, ...] = (DynamicDim(symbol="s0", lo=1, hi=4), 3, 20, 30)
) -> Any:
    spec = TensorSpec(name="x", dtype=dtype, shape=shape)
    return Signature(inputs=(spec,), outputs=(TensorSpec(name="y", dtype="float32", shape=(1, 2)),))


def test_which_models_take_pictures() -> None:
    rgb = {"layout": "NCHW", "color": "RGB", "mean": [1, 2, 3], "std": [4, 5, 6], "steps": []}
    found = picture_spec(_signature(), rgb, ["a", "b"], "y")
    assert found is not None
    assert (found["width"], found["height"], found["shape"]) == (30, 20, [1, 3, 20, 30])
    assert (found["dark"], found["light"], found["method"]) == (0.0, 255.0, "bilinear")
    gray = picture_spec(_signature(shape=(1, 1, 8, 8)), PREPROCESSING, [], "y")
    assert gray is not None
    assert (gray["dark"], gray["light"], gray["method"]) == (16.0, 0.0, "box")
    for signature, preprocessing, output in (
        (_signature(), rgb, None),
        (_signature(), None, "y"),
        (_signature("int64"), rgb, "y"),
        (_signature(shape=(1, 4, 20, 30)), rgb, "y"),
        (_signature(shape=(1, 3, 20)), rgb, "y"),
        (_signature(shape=(2, 3, 20, 30)), rgb, "y"),
        (_signature(), {**rgb, "layout": "BT"}, "y"),
    ):
        assert picture_spec(signature, preprocessing, [], output) is None


def test_the_harness_has_a_version_of_its_own_text() -> None:
    assert page.version() == page.version()
    assert len(page.version()) == 16


def test_the_lock_file_pins_every_package() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    wanted = json.loads((WEB / "package.json").read_text())["dependencies"]
    packages = {n.removeprefix("node_modules/"): p for n, p in lock["packages"].items() if n}
    assert {n: packages[n]["version"] for n in wanted} == wanted
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, "a registry's address has no place here"
