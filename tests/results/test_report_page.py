"""The report in the system's Chromium: light, dark, narrow, on paper, by keyboard, without its script, under attack."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_bench.report import page
from tests.results.browser import Opened, chromium
from tests.results.reporting import HOSTILE, hostile_report, make

#: name -> width in CSS pixels, dark
LOOKS = {"light": (1440, False), "dark": (1440, True), "narrow": (390, False), "narrow-dark": (390, True)}
#: WCAG 2.2: 1.4.3 for text, 1.4.3 for large text, 1.4.11 for graphics.
TEXT, LARGE, GRAPHICS = 4.5, 3.0, 3.0

#: for every element with text of its own: its colour, what is behind it, its size and weight
_TEXTS = """
() => {
  const rgb = (text) => {
    const n = text.match(/-?[\\d.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return [...n.slice(0, 3).map((v) => v * scale), n[3] ?? 1];
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c[3] === 1) return c;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  for (const e of document.body.querySelectorAll("*")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["STYLE", "SCRIPT", "title", "desc", "OPTION"].includes(e.tagName)) continue;
    if (!e.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(e);
    const svg = e instanceof SVGElement;
    found.push({
      text: e.textContent.trim().slice(0, 40),
      ink: rgb(svg ? style.fill : style.color),
      behind: behind(e),
      size: parseFloat(style.fontSize),
      bold: Number(style.fontWeight) >= 700,
    });
  }
  return found;
}
"""

#: for every mark that tells something by itself: its colour and what is behind it
_MARKS = """
() => [...document.querySelectorAll(".m.best, .deleg, .bar.tall rect, .p50, .series, .front")].map((e) => {
  const s = getComputedStyle(e);
  const fill = s.fill !== "none";
  let card = e.closest(".panel, .tiles li, .key") ? e.closest(".panel") : null;
  const back = getComputedStyle(card ?? document.body).backgroundColor;
  const rgb = (t) => t.match(/[\\d.]+/g).map(Number).slice(0, 3);
  return { kind: e.getAttribute("class"), ink: rgb(fill ? s.fill : s.stroke), behind: rgb(back) };
})
"""

#: what sticks out of the window and is in nothing that scrolls by itself
_STICKING_OUT = """
() => [...document.body.querySelectorAll("*")].filter((e) => {
  if (e.closest(".scroll, .fit, nav") && !e.matches(".scroll, .fit, nav")) return false;
  const r = e.getBoundingClientRect();
  return r.width > 0 && (r.right > innerWidth + 0.5 || r.left < -0.5) && e.checkVisibility();
}).map((e) => e.outerHTML.slice(0, 120))
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    path.write_text(page.render(make(folder).report), encoding="utf-8")
    return path


@pytest.fixture(params=LOOKS)
def opened(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[tuple[str, Opened]]:
    width, dark = LOOKS[request.param]
    found = Opened(browser, file, width=width, dark=dark)
    yield request.param, found
    found.close()


def luminance(colour: list[float]) -> float:
    def channel(value: float) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = map(channel, colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: list[float], b: list[float]) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast([255, 255, 255], [0, 0, 0]) == pytest.approx(21)
    assert contrast([119, 119, 119], [255, 255, 255]) == pytest.approx(4.48, abs=0.01)


def test_no_error_no_request_no_overflow(opened: tuple[str, Opened]) -> None:
    _, found = opened
    assert found.errors == []
    assert found.requests == []
    width = found.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]
    assert found.page.evaluate(_STICKING_OUT) == []


def test_screenshots_show_the_plots(opened: tuple[str, Opened], tmp_path: Path) -> None:
    """``EDGEPORT_SCREENSHOTS`` names a folder that keeps them."""
    name, found = opened
    folder = Path(os.environ.get("EDGEPORT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    width, dark = LOOKS[name]
    for part in ("top", "latency", "distributions", "decide", "coverage", "devices", "findings"):
        target = found.page.locator(f"#{part}" if part != "top" else ".hero")
        target.evaluate("e => { document.documentElement.style.scrollBehavior = 'auto'; e.scrollIntoView(); }")
        shot = found.page.screenshot(path=folder / f"{name}-{part}.png")
        assert struct.unpack(">II", shot[16:24]) == (width, 900)
        colours = _colours(shot)
        # A blank page, or one without its style, has hardly any colours; the ground tells the theme.
        assert len(colours) > 20
        most = max(colours.values())
        ground = luminance(next(list(map(float, c)) for c, n in colours.items() if n == most))
        assert ground < 0.05 if dark else ground > 0.8


def _colours(png: bytes) -> dict[tuple[int, ...], int]:
    """RGB -> how many pixels."""
    import io

    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        found = image.convert("RGB").getcolors(1 << 24) or []
    return {colour: count for count, colour in found if isinstance(colour, tuple)}


def test_texts_and_marks_stand_out_from_what_is_behind_them(opened: tuple[str, Opened]) -> None:
    _, found = opened
    texts = found.page.evaluate(_TEXTS)
    assert len(texts) > 1000
    weak = [
        (t["text"], round(contrast(t["ink"], t["behind"]), 2))
        for t in texts
        if contrast(t["ink"], t["behind"]) < (LARGE if t["size"] >= 24 or (t["size"] >= 18.66 and t["bold"]) else TEXT)
    ]
    assert weak == []
    marks = found.page.evaluate(_MARKS)
    assert {m["kind"].split()[0] for m in marks} >= {"m", "deleg", "v-pass", "v-fail", "v-inconclusive", "p50", "front"}
    faint = {(m["kind"], round(contrast(m["ink"], m["behind"]), 2)) for m in marks
             if contrast(m["ink"], m["behind"]) < GRAPHICS}  # fmt: skip
    assert faint == set()


def test_every_plot_says_what_it_shows(opened: tuple[str, Opened]) -> None:
    _, found = opened
    plots = found.page.evaluate("""() => [...document.querySelectorAll("svg.plot")].map((s) => {
      const of = (a) => document.getElementById(s.getAttribute(a))?.textContent ?? "";
      return [s.getAttribute("role"), of("aria-labelledby"), of("aria-describedby")];
    })""")
    assert len(plots) >= 3 * 3 * 2 + 3
    assert all(role == "img" and title and description for role, title, description in plots)
    assert len({title for _, title, _ in plots}) == len(plots)
    assert found.page.evaluate("[...document.querySelectorAll('table')].every((t) => t.caption?.textContent.trim())")


def test_everything_is_reached_and_worked_by_keyboard(browser: Any, file: Path) -> None:
    found = Opened(browser, file, width=1440)
    tab = found.page
    seen: list[str] = []
    for _ in range(400):
        tab.keyboard.press("Tab")
        name, outline = tab.evaluate("""() => {
          const e = document.activeElement, s = getComputedStyle(e);
          const name = e.id || e.dataset.filter || e.getAttribute("href") || e.getAttribute("aria-label")
            || e.getAttribute("aria-labelledby") || e.textContent.trim().slice(0, 20);
          return [`${e.tagName} ${name}`, s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2];
        }""")
        if name.startswith("BODY"):
            break
        assert outline, f"{name} does not show that it has the focus"
        seen.append(name)
    assert seen[0] == "A #main"
    wanted = {"BUTTON theme", "BUTTON reset", "BUTTON tab-0", "A #devices", "DIV decide-h"}
    wanted |= {f"SELECT {f}" for f in ("model", "target", "precision", "device", "verdict")}
    assert wanted <= set(seen)
    assert sum(n.endswith("↕") or n.startswith("BUTTON p95") for n in seen) >= 1
    found.close()


def test_controls_do_what_they_say(browser: Any, file: Path) -> None:
    found = Opened(browser, file, width=1440)
    tab = found.page
    column = (
        "() => [...document.querySelectorAll('#decisions tbody tr:not([hidden])')].map((r) => r.cells[7].dataset.v)"
    )
    head = tab.locator("#decisions thead button", has_text="p95")
    head.focus()
    tab.keyboard.press("Enter")
    values = tab.evaluate(column)
    known = [float(v) for v in values if v]
    assert known == sorted(known)
    assert values == [*values[: len(known)], *[""] * (len(values) - len(known))]
    assert head.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    tab.keyboard.press("Space")
    values = tab.evaluate(column)
    assert [float(v) for v in values if v] == known[::-1]
    assert values[-1] == ""
    tab.locator("[data-filter=model]").select_option("minilm")
    tab.locator("[data-filter=verdict]").select_option("PASS")
    shown = tab.locator("#decisions tbody tr:not([hidden])")
    assert 0 < shown.count() < len(values)
    assert all("minilm" in t and "PASS" in t for t in shown.all_inner_texts())
    assert tab.locator("#shown").inner_text() == f"{shown.count()} of {len(values)} rows"
    tab.locator("#reset").click()
    assert shown.count() == len(values)
    tab.locator("#tab-0").focus()
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate("document.activeElement.id") == "tab-2"
    assert [tab.locator(f"#device-{i}").is_visible() for i in range(3)] == [False, False, True]
    theme = tab.locator("#theme")
    theme.click()
    theme.click()
    assert theme.inner_text() == "Theme: dark"
    assert luminance(_background(tab)) < 0.05
    tab.keyboard.press("Home")
    tab.evaluate("document.activeElement.blur()")
    tab.locator(".skip").focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    assert found.errors == []
    found.close()


def _background(tab: Any) -> list[float]:
    colour: str = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    return [float(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")]


def test_without_its_script_all_of_it_is_there(browser: Any, file: Path) -> None:
    found = Opened(browser, file, width=1440, java_script_enabled=False)
    tab = found.page
    assert all(tab.locator(f"#device-{i}").is_visible() for i in range(3))
    assert tab.locator("#decisions tbody tr").count() > 100
    for hidden in ("#controls", ".tabs", "#theme"):
        assert not tab.locator(hidden).is_visible()
    found.close()


def test_on_paper_it_is_light_and_whole(browser: Any, file: Path) -> None:
    found = Opened(browser, file, width=718, dark=True)
    tab = found.page
    tab.emulate_media(media="print", color_scheme="dark")
    assert _background(tab) == [255, 255, 255]
    assert all(tab.locator(f"#device-{i}").is_visible() for i in range(3))
    for hidden in ("nav", "#theme", "#controls", ".tabs"):
        assert not tab.locator(hidden).is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 718
    texts = tab.evaluate(_TEXTS)
    assert [t["text"] for t in texts if contrast(t["ink"], t["behind"]) < LARGE] == []
    assert tab.pdf(format="A4")[:5] == b"%PDF-"
    found.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_hostile_texts_do_not_run_and_do_not_break_the_page(browser: Any, tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    path.write_text(page.render(hostile_report(tmp_path)), encoding="utf-8")
    found = Opened(browser, path, width=width)
    tab = found.page
    assert tab.title() == "Edgeport report"
    assert found.errors == []
    assert found.requests == []
    assert tab.evaluate("document.querySelectorAll('img, iframe, object, script:not(:last-of-type)').length") == 0
    assert tab.evaluate("document.querySelectorAll('script').length") == 1
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(_STICKING_OUT) == []
    # Each name is there to be read, as text.
    names = tab.locator(".device h3").all_text_contents()
    assert len(names) == len(HOSTILE) + 1
    assert any("<script>document.title='x'<\\script>" in n for n in names)
    found.close()


def test_the_policy_stops_what_would_get_through(browser: Any, file: Path, tmp_path: Path) -> None:
    """Had an escape been forgotten, the browser would still run nothing and ask for nothing."""
    path = tmp_path / "injected.html"
    attack = (
        "<script>document.title='ran'</script><img src='https://example.invalid/x' onerror=\"document.title='ran'\">"
        "<style>body{display:none}</style><a id=a href=\"javascript:document.title='ran'\">x</a>"
    )
    content = file.read_text(encoding="utf-8")
    path.write_text(content.replace('<main id="main" tabindex="-1">', f'<main id="main" tabindex="-1">{attack}'))
    found = Opened(browser, path, width=1440)
    found.page.locator("#a").click()
    assert found.page.title() == "Edgeport report"
    assert found.page.locator("#main").is_visible()
    assert found.errors
    assert all("Content Security Policy" in e for e in found.errors)
    found.close()
