"""The page itself: what a person sees, pictures, and the modules whose results can be compared with other programs'."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from device_bench.web import page
from device_bench.web.harness import _files, web_job
from device_bench.web.pictures import picture_spec
from device_bench.web.runtime import WEB, runtime
from device_bench.web.server import Server, Ticket
from targets.contract import DynamicDim, Signature, TensorSpec
from tests.results.browser import chromium
from tests.web.support import PREPROCESSING, QUICK, artifact, data_of

#: for tests of modules alone.
_TOOLS = {f.name: f for f in WEB.glob("*.js")}


@pytest.fixture(scope="module")
def browser(browser_here: None) -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(page.lobby(), {"Content-Security-Policy": page.header_policy()}) as started:
        yield started


@pytest.fixture
def finished(result_page: Any) -> Any:
    """A page with a result in it, as it was when it came."""
    result_page.set_viewport_size({"width": 1100, "height": 900})
    result_page.emulate_media(color_scheme="light")
    result_page.evaluate("document.activeElement.blur()")
    return result_page


@pytest.fixture(scope="module")
def result_page(browser: Any, server: Server, out: Path) -> Iterator[Any]:
    """A page that has measured; it can't do so again."""
    with TemporaryDirectory() as folder:
        found = artifact(out)
        data, engine = data_of(out, found), runtime("ort_web", "wasm", 1)
        job = web_job(found, data, QUICK, engine, "wasm", evaluate=True)
        ticket = Ticket(
            files=_files(found, data, engine, job), uploads={"result": 1 << 24, "outputs": 1 << 24}, folder=Path(folder)
        )
        server.offer(ticket, queue=False)
        context = browser.new_context(viewport={"width": 1100, "height": 900}, color_scheme="light")
        opened = context.new_page()
        opened.goto(server.url_of(ticket))
        opened.wait_for_selector("body[data-state=done]")
        yield opened
        context.close()


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


def _png(pixels: Any) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def _pictures(out: Path) -> list[tuple[bytes, int]]:
    """Digits of the evaluation set as a person has them: black on white, 128 pixels wide; and which they are."""
    import numpy as np
    from safetensors.numpy import load_file

    found = artifact(out)
    tensors = load_file(data_of(out, found).file)
    made = []
    for call in found.record.calls:
        digit = np.rint(255 - 255 * tensors[f"{call.id}/in/image"][0, 0]).astype(np.uint8)
        assert call.label is not None
        made.append((_png(np.kron(digit, np.ones((16, 16), np.uint8))), call.label))
    return made


def _pixel(shot: bytes, box: dict[str, float], x: float, y: float) -> tuple[int, ...]:
    from PIL import Image

    image = Image.open(io.BytesIO(shot)).convert("RGB")
    found = image.getpixel((int(box["x"] + x * box["width"]), int(box["y"] + y * box["height"])))
    assert isinstance(found, tuple)
    return found


def test_a_screenshot_of_a_result(finished: Any, tmp_path: Path) -> None:
    """The figures are there and in view, the plot is drawn, nothing overlaps or runs out of the page."""
    figures = finished.locator("#figures div")
    texts = {f.locator("dt").inner_text(): f.locator("dd").inner_text() for f in figures.all()}
    assert set(texts) == {"p50", "p95", "per second", "runs", "load", "first inference"}
    assert float(texts["p50"].split()[0]) <= float(texts["p95"].split()[0])
    assert int(texts["runs"]) >= 5
    boxes = [f.bounding_box() for f in figures.all()]
    assert all(b["width"] > 60 and b["height"] > 30 and b["x"] + b["width"] <= 1100 for b in boxes)
    assert finished.inner_text("#state") == "done"
    assert [s.get_attribute("data-state") for s in finished.locator("#stages li").all()] == ["done"] * 7
    facts = finished.inner_text("#facts")
    for words in ("onnxruntime-web 1.30.0", "wasm", "Cross-origin isolated", "Chrome"):
        assert words in facts
    assert not finished.evaluate("document.documentElement.scrollWidth > innerWidth")

    shot = finished.screenshot(full_page=True, path=tmp_path / "page.png")
    accent, card, text = ((11, 110, 99), (255, 255, 255), (24, 32, 44))
    progress, plot = (finished.locator(s).bounding_box() for s in ("#progress", "#plot"))
    assert _pixel(shot, progress, 0.5, 0.5) == accent
    assert _pixel(shot, plot, 0.5, 0.999) == card
    seen = _colours(shot, plot)
    assert seen[accent] > 50, "the runs"
    assert seen[card] > 0.5 * plot["width"] * plot["height"]
    assert any(_near(colour, text) for colour in seen), "the line of the median"


def _colours(shot: bytes, box: dict[str, float]) -> dict[tuple[int, ...], int]:
    from collections import Counter

    from PIL import Image

    image = Image.open(io.BytesIO(shot)).convert("RGB")
    part = image.crop((int(box["x"]), int(box["y"]), int(box["x"] + box["width"]), int(box["y"] + box["height"])))
    return Counter(part.get_flattened_data() if hasattr(part, "get_flattened_data") else part.getdata())


def _near(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) < 12


def test_the_dark_page_is_dark_and_readable(finished: Any) -> None:
    finished.emulate_media(color_scheme="dark")
    shot = finished.screenshot(full_page=True)
    seen = _colours(shot, {"x": 0, "y": 0, "width": 1100, "height": 900})
    assert max(seen, key=lambda c: seen[c]) in {(16, 21, 28), (24, 32, 41)}
    assert any(_near(colour, (232, 237, 243)) for colour in seen), "light letters"
    assert any(_near(colour, (86, 211, 191)) for colour in seen), "the accent of the dark page"


@pytest.mark.parametrize("width", [320, 1100])
def test_it_fits_screens(finished: Any, width: int) -> None:
    finished.set_viewport_size({"width": width, "height": 700})
    assert finished.evaluate("document.documentElement.scrollWidth") <= width


def test_it_can_be_used_with_the_keyboard(finished: Any) -> None:
    focus = "document.activeElement.id || document.activeElement.className"
    finished.evaluate("document.querySelector('.skip').focus()")
    assert finished.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    finished.keyboard.press("Tab")
    assert finished.evaluate(focus) == "picture"
    # What has the focus shows it.
    assert finished.evaluate("getComputedStyle(document.getElementById('drop')).outlineStyle") == "solid"


def test_dropped_digits_are_recognised(finished: Any, out: Path) -> None:
    """Pictures go through the page's own preprocessing; the classes are those of the same images as tensors."""
    pictures = _pictures(out)[:10]
    for number, (content, label) in enumerate(pictures):
        file = {"name": f"{number}.png", "mimeType": "image/png", "buffer": content}
        finished.evaluate("document.getElementById('predicted').textContent = ''")
        finished.set_input_files("#picture", file)
        finished.wait_for_selector("#scores li:nth-child(5)")
        assert finished.inner_text("#predicted") == str(label)
    assert len({label for _, label in pictures}) > 3


def test_a_picture_is_dropped_by_hand(finished: Any, out: Path) -> None:
    import base64

    content, label = _pictures(out)[0]
    drop = """async (text) => {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], 'digit.png', { type: 'image/png' }));
      const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
      document.getElementById('drop').dispatchEvent(new DragEvent('drop', options));
    }"""
    finished.evaluate(drop, base64.b64encode(content).decode())
    finished.wait_for_selector("#scores li:nth-child(5)")
    assert finished.inner_text("#predicted") == str(label)
    assert finished.is_visible("#seen")


def test_what_is_no_picture_is_refused(finished: Any) -> None:
    finished.set_input_files("#picture", {"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"})
    finished.wait_for_selector('#predicted:has-text("can\'t be used")')
    assert finished.locator("#scores li").count() == 0


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
