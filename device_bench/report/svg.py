"""SVG as text: elements, markers, axes. Whatever is not SVG made here is escaped. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from device_bench.report.scale import Scale


class Safe(str):
    """Markup made here. Template engines that know ``__html__`` leave it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


Value = str | float | int | None


def el(name: str, *children: str, **attributes: Value) -> Safe:
    """An element. ``class_`` is ``class``, ``_`` in names is ``-``; None leaves an attribute out; text is escaped."""
    words = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(v) if isinstance(v, float) else str(v))}"'
        for key, v in attributes.items()
        if v is not None
    ]
    inside = "".join(c if isinstance(c, Safe) else escape(c) for c in children)
    return Safe(f"<{name}{''.join(words)}>{inside}</{name}>" if inside else f"<{name}{''.join(words)}/>")


def number(value: float) -> str:
    """A coordinate, in tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, *, kind: str = "t", anchor: str | None = None) -> Safe:
    """A label. ``kind``: its CSS class."""
    return el("text", words, x=x, y=y, class_=kind, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Safe:
    """A line."""
    return el("path", d=f"M{number(x1)},{number(y1)}L{number(x2)},{number(y2)}", class_=kind)


def polyline(points: Sequence[tuple[float, float]], kind: str) -> Safe:
    """An open line through points."""
    return el("path", d="M" + "L".join(f"{number(x)},{number(y)}" for x, y in points), class_=kind)


_SHAPES = (
    None,
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, -1.25), (1.2, 0.95), (-1.2, 0.95)),
    ((-1.2, -0.95), (1.2, -0.95), (0, 1.25)),
    ((-0.55, -1.1), (0.55, -1.1), (1.15, 0), (0.55, 1.1), (-0.55, 1.1), (-1.15, 0)),
)


def marker(index: int, x: float, y: float, radius: float, kind: str, title: str = "") -> Safe:
    """A mark whose shape tells as much as its colour does: one of six, by index."""
    shape = _SHAPES[min(index, len(_SHAPES) - 1)]
    inside = (el("title", title),) if title else ()
    if shape is None:
        return el("circle", *inside, cx=x, cy=y, r=radius, class_=kind)
    d = "M" + "L".join(f"{number(x + a * radius)},{number(y + b * radius)}" for a, b in shape) + "Z"
    return el("path", *inside, d=d, class_=kind)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The area of a plot inside its margins, in pixels of its viewBox."""

    left: float
    top: float
    right: float
    bottom: float


def x_axis(frame: Frame, scale: Scale, title: str) -> list[Safe]:
    """Grid lines, tick labels and the axis title below the frame."""
    parts = []
    last = -1e9
    for tick in scale.ticks:
        x, label = scale(tick), scale.label(tick)
        parts.append(line(x, frame.top, x, frame.bottom, "grid"))
        half = 3.4 * len(label)
        if x - half > last + 4:  # labels of a logarithmic axis may run into each other
            parts.append(text(x, frame.bottom + 15, label, kind="t tick", anchor="middle"))
            last = x + half
    parts.append(line(frame.left, frame.bottom, frame.right, frame.bottom, "axis"))
    parts.append(text(frame.right, frame.bottom + 31, title, kind="t title", anchor="end"))
    return parts


def y_axis(frame: Frame, scale: Scale, title: str) -> list[Safe]:
    """The same for the left side; the title stands above it."""
    parts = []
    for tick in scale.ticks:
        y = scale(tick)
        parts.append(line(frame.left, y, frame.right, y, "grid"))
        parts.append(text(frame.left - 6, y + 4, scale.label(tick), kind="t tick", anchor="end"))
    parts.append(text(2, frame.top - 11, title, kind="t title"))
    return parts


def picture(width: float, height: float, *parts: str, key: str, title: str, description: str) -> Safe:
    """The whole: an image to those who cannot see it, with a title and a description.

    Args:
        key: unique in the page.
    """
    return el(
        "svg",
        el("title", title, id=f"{key}-t"),
        el("desc", description, id=f"{key}-d"),
        *parts,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{key}-t",
        aria_describedby=f"{key}-d",
        class_="plot",
    )
