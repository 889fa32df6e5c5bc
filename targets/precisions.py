"""The precisions: one set of names with one meaning on every target. Which target has which: ``targets.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from build.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A named numeric recipe.

    Attributes:
        name: as ``--precisions`` spells it.
        weight_bits: bits per stored weight of the layers that carry nearly all weights (convolutions, linear layers).
            4 are for linear layers alone, convolutions have 8 then; an artifact's warnings say which of its have what.
        activations: ``float``; ``dynamic``: 8 bits, ranged at run time; ``static``: 8 bits, ranged by calibration. Of
            layers over a stored weight for which the target has integer arithmetic; an artifact's manifest names the
            others (``float_arithmetic``, ``unquantized``), and one with none at all is not made.
        meaning: one line for people.
    """

    name: str
    weight_bits: Literal[32, 16, 8, 4]
    activations: Literal["float", "dynamic", "static"]
    meaning: str

    @property
    def quantized(self) -> bool:
        """Whether it is a new model: judged by its metric, not by a tolerance per element."""
        return self.weight_bits < 16

    @property
    def calibrated(self) -> bool:
        """Whether it needs calibration data."""
        return self.activations == "static"


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="fp32", weight_bits=32, activations="float", meaning="the program's own arithmetic"),
        Precision(name="fp16", weight_bits=16, activations="float", meaning="half-precision weights"),
        Precision(name="int8-weight", weight_bits=8, activations="float", meaning="8-bit weights, float arithmetic"),
        Precision(
            name="int8-dynamic",
            weight_bits=8,
            activations="dynamic",
            meaning="8-bit weights, activations ranged at run time",
        ),
        Precision(
            name="int8-static",
            weight_bits=8,
            activations="static",
            meaning="8-bit weights, activations ranged by calibration",
        ),
        Precision(
            name="int4-weight",
            weight_bits=4,
            activations="float",
            meaning="4-bit weights in linear layers, 8-bit in convolutions, float arithmetic",
        ),
    )
}


def precision(name: str) -> Precision:
    """The precision of that name.

    Raises:
        InputError: there is none; the message lists those there are.
    """
    if name not in PRECISIONS:
        raise InputError(f"no precision is named '{name}'", remedy=f"Precisions: {', '.join(PRECISIONS)}, all.")
    return PRECISIONS[name]
