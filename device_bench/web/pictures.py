"""How a page turns a picture into a model's input, from what the model's contract says. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from targets.contract import Signature, TensorSpec

#: "ink 16, paper 0": the values of dark and light pixels, where they are not those of 8-bit pictures.
_INK = re.compile(r"ink (\d+(?:\.\d+)?), paper (\d+(?:\.\d+)?)")
_CHANNELS = {"gray": 1, "RGB": 3, "BGR": 3}


def picture_spec(
    signature: Signature, preprocessing: Mapping[str, Any] | None, labels: Sequence[str], decision_output: str | None
) -> dict[str, Any] | None:
    """What ``picture.js`` needs; None for a model that does not decide about one picture of a known size.

    A picture is put on white, resized without keeping its aspect (a box filter where the model wants ink counted per
    block, otherwise Pillow's bilinear), and scaled as ``(raw - mean) / std``.
    """
    if preprocessing is None or decision_output is None or len(signature.inputs) != 1:
        return None
    (spec,) = signature.inputs
    layout, color = preprocessing.get("layout") or "", preprocessing.get("color")
    shape = _smallest(spec)
    if sorted(layout) != ["C", "H", "N", "W"] or len(shape) != 4 or spec.dtype != "float32" or color not in _CHANNELS:
        return None
    at = {axis: shape[layout.index(axis)] for axis in "NCHW"}
    if at["N"] != 1 or at["C"] != _CHANNELS[color]:
        return None
    ink = _INK.search(" ".join(preprocessing.get("steps") or ()))
    return {
        "input": spec.name,
        "output": decision_output,
        "layout": layout,
        "color": color,
        "width": at["W"],
        "height": at["H"],
        "shape": shape,
        "mean": list(preprocessing.get("mean") or ()),
        "std": list(preprocessing.get("std") or ()),
        "dark": float(ink[1]) if ink else 0.0,
        "light": float(ink[2]) if ink else 255.0,
        "method": "box" if ink else "bilinear",
        "labels": list(labels),
    }


def _smallest(spec: TensorSpec) -> list[int]:
    """The shape of one example: every dynamic dimension at its least."""
    return [d if isinstance(d, int) else d.lo for d in spec.shape]
