"""The page itself: what a person sees, pictures, and the modules whose results can be compared with other programs'."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from device_bench.web.harness import job_files, web_job
from device_bench.web.runtime import runtime
from device_bench.web.server import Server
from device_bench.web.ticket import Ticket
from tests.web.support import PREPROCESSING, QUICK, artifact, data_of, make_out


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
    with _opened(browser, server, out) as opened:
        opened.wait_for_selector("body[data-state=done]")
        yield opened


@contextlib.contextmanager
def _opened(browser: Any, server: Server, out: Path) -> Iterator[Any]:
    with TemporaryDirectory() as folder:
        found = artifact(out)
        data, engine = data_of(out, found), runtime("ort_web", "wasm", 1)
        job = web_job(found, data, QUICK, engine, "wasm", evaluate=True)
        ticket = Ticket(
            files=job_files(found, data, engine, job),
            uploads={"result": 1 << 24, "outputs": 1 << 24},
            folder=Path(folder),
        )
        server.offer(ticket, queue=False)
        context = browser.new_context(viewport={"width": 1100, "height": 900}, color_scheme="light")
        opened = context.new_page()
        opened.goto(server.url_of(ticket))
        yield opened
        context.close()


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


#: what a drop at a place of the page does; true: the browser opens the file, and leaves the page.
_DROP_AT = """(selector) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File(['x'], 'x.png', { type: 'image/png' }));
  const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
  const place = document.querySelector(selector);
  return ['dragover', 'drop'].map((name) => place.dispatchEvent(new DragEvent(name, options)));
}"""


def test_a_picture_beside_its_place_opens_nothing(finished: Any) -> None:
    for place in ("body", "#figures", "#plot"):
        assert finished.evaluate(_DROP_AT, place) == [False, False], place


def test_a_picture_before_its_time_opens_nothing(browser: Any, server: Server) -> None:
    """While a page waits or measures, nobody takes pictures yet."""
    opened = browser.new_page()
    opened.goto(server.url())
    opened.wait_for_selector("#drop.off", state="attached")
    for place in ("#drop", "body"):
        assert opened.evaluate(_DROP_AT, place) == [False, False], place
    opened.close()


def test_of_two_pictures_the_last_ones_answer_stays(finished: Any, out: Path) -> None:
    import base64

    (slow, one), (fast, two) = next((a, b) for a, b in itertools.pairwise(_pictures(out)) if a[1] != b[1])
    seen = finished.evaluate(
        """async (texts) => {
          const real = self.createImageBitmap;
          let calls = 0;
          self.createImageBitmap = async (file) => {
            if (calls++ === 0) await new Promise((resolve) => setTimeout(resolve, 500));
            return real(file);
          };
          const seen = [];
          const predicted = document.getElementById('predicted');
          new MutationObserver(() => seen.push(predicted.textContent)).observe(predicted, { childList: true });
          for (const text of texts) {
            const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], 'digit.png', { type: 'image/png' }));
            const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
            document.getElementById('drop').dispatchEvent(new DragEvent('drop', options));
            await new Promise((resolve) => setTimeout(resolve, 50));
          }
          const wanted = () => calls === 2 && document.querySelectorAll('#scores li').length === 5;
          while (!wanted()) await new Promise((resolve) => setTimeout(resolve, 20));
          await new Promise((resolve) => setTimeout(resolve, 700));
          self.createImageBitmap = real;
          return seen.filter((text) => text !== 'Looking…');
        }""",
        [base64.b64encode(content).decode() for content in (slow, fast)],
    )
    assert one != two
    assert seen == [str(two)]
    assert finished.inner_text("#predicted") == str(two)


def test_a_step_that_the_page_does_not_do_is_named_in_place_of_answers(
    browser: Any, server: Server, tmp_path: Path
) -> None:
    other = make_out(tmp_path / "out", preprocessing={**PREPROCESSING, "steps": ["thin the strokes"]})
    with _opened(browser, server, other) as opened:
        opened.wait_for_selector("body[data-state=done]")
        assert "can't do a step of this model's preprocessing: 'thin the strokes'" in opened.inner_text("#picture-none")
        assert not opened.is_visible("#picture-area")


def test_what_is_no_picture_is_refused(finished: Any) -> None:
    finished.set_input_files("#picture", {"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"})
    finished.wait_for_selector('#predicted:has-text("can\'t be used")')
    assert finished.locator("#scores li").count() == 0
