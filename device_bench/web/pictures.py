"""How a page turns a picture into a model's input, from what the model's contract says. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from build.record import ProgramRecord
from targets.contract import Dim, DynamicDim, Signature

_CHANNELS = {"gray": 1, "RGB": 3, "BGR": 3}
_NUMBER = r"-?\d+(?:\.\d+)?"
#: "ink 16, paper 0": the values of dark and light pixels, where they are not those of 8-bit pictures.
_INK = re.compile(
    rf"(?P<size>\d+x\d+) pixels, ink (?P<dark>{_NUMBER}), paper (?P<light>{_NUMBER})"
    r"(?: \(count of dark pixels per \d+x\d+ block of a \d+x\d+ bitmap\))?"
)
_COLOR = re.compile(r"(?P<color>RGB|BGR|gray), 8 bits per channel")
#: what the page does: Pillow's bilinear, whose triangle grows with the reduction. Without antialiasing it is another.
_RESIZE = re.compile(
    r"resize to (?P<size>\d+x\d+)(?: without keeping the aspect ratio)?[:,] "
    r"bilinear(?:,| with) antialias(?:ing)?(?: \(Pillow's BILINEAR\))?(?:, rounded to 8 bits)?"
)
_SCALE = re.compile(rf"(?:subtract (?P<mean>{_NUMBER})(?:, |$))?(?:divide by (?P<std>{_NUMBER}))?")
_TENSOR = re.compile(r"float32, shape \[.*\]")


def picture_json(record: ProgramRecord) -> dict[str, Any]:
    """For a page: ``picture``, see :func:`picture_spec`, or None; ``no_picture``: why there is none, in words."""
    examples = [c.sizes for c in record.calls if c.kind == "example"]
    found = picture_spec(
        record.signature,
        record.preprocessing,
        record.labels,
        record.decision_output,
        examples[0] if examples else {},
    )
    return {"picture": None, "no_picture": found} if isinstance(found, str) else {"picture": found, "no_picture": None}


def picture_spec(
    signature: Signature,
    preprocessing: Mapping[str, Any] | None,
    labels: Sequence[str],
    decision_output: str | None,
    example: Mapping[str, int],
) -> dict[str, Any] | str:
    """What ``picture.js`` needs; a text, why not, for a model whose input the page can't make of a picture.

    A picture is put on white, resized without keeping its aspect (a box filter where the model wants ink counted per
    block, otherwise Pillow's bilinear), and scaled as ``(raw - mean) / std``.

    Args:
        example: root sizes of the model's example: what is not the batch has its size there.
    """
    none = "This model takes no pictures."
    if preprocessing is None or decision_output is None or len(signature.inputs) != 1:
        return none
    (spec,) = signature.inputs
    layout, color = preprocessing.get("layout") or "", preprocessing.get("color")
    if sorted(layout) != ["C", "H", "N", "W"] or len(spec.shape) != 4 or spec.dtype != "float32":
        return none
    if color not in _CHANNELS:
        return none
    sizes = _one_picture(spec.shape[layout.index("N")], example)
    if sizes is None:
        return "No pictures here: this model takes several at a time."
    shape = [_size(d, sizes) for d in spec.shape]
    at = {axis: shape[layout.index(axis)] for axis in "NCHW"}
    height, width = at["H"], at["W"]
    if height is None or width is None or at["C"] is None:
        return "No pictures here: the size that this model wants them in is not known."
    if at["C"] != _CHANNELS[color]:
        return none
    mean, std = list(preprocessing.get("mean") or ()), list(preprocessing.get("std") or ())
    steps = [str(s) for s in preprocessing.get("steps") or ()]
    if len(mean) not in (0, at["C"]) or len(std) not in (0, at["C"]):
        return f"No pictures here: this model's mean and std are not those of {at['C']} channels."
    for step in steps:
        if not _understood(step, color, {f"{width}x{height}", f"{height}x{width}"}, mean, std):
            return f"No pictures here: this page can't do a step of this model's preprocessing: '{step}'."
    ink = next((m for m in map(_INK.fullmatch, steps) if m), None)
    return {
        "input": spec.name,
        "output": decision_output,
        "layout": layout,
        "color": color,
        "width": width,
        "height": height,
        "shape": shape,
        "sizes": sizes,
        "mean": mean,
        "std": std,
        "dark": float(ink["dark"]) if ink else 0.0,
        "light": float(ink["light"]) if ink else 255.0,
        "method": "box" if ink else "bilinear",
        "labels": list(labels),
    }


def _one_picture(batch: Dim, example: Mapping[str, int]) -> dict[str, int] | None:
    """Root sizes of a call with one picture; None: there can't be one."""
    if isinstance(batch, int):
        return dict(example) if batch == 1 else None
    root, rest = divmod(1 - batch.offset, batch.scale)
    return {**example, batch.symbol: root} if rest == 0 and batch.lo <= 1 else None


def _size(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """Of a dimension; None: not known."""
    if not isinstance(dim, DynamicDim):
        return dim
    return dim.scale * sizes[dim.symbol] + dim.offset if dim.symbol in sizes else None


def _understood(step: str, color: str, sizes: set[str], mean: Sequence[float], std: Sequence[float]) -> bool:
    """Whether the page does what a step says."""
    for sized in (_INK, _RESIZE):
        if found := sized.fullmatch(step):
            return found["size"] in sizes
    if found := _COLOR.fullmatch(step):
        return found["color"] == color
    if step and (found := _SCALE.fullmatch(step)):
        # The figures are what the page uses: the words must not say anything else.
        return all(
            found[name] is None or {float(v) for v in figures} == {float(found[name])}
            for name, figures in (("mean", mean), ("std", std))
        )
    return _TENSOR.fullmatch(step) is not None
