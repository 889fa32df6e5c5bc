"""A program with small weights, and 8-bit values where they are calibrated, for Core ML: made by PT2E.

coremltools reads the quantize and dequantize ops: weights become constant expressions that Core ML expands, values its
``quantize`` and ``dequantize`` operations. Its own ``linear_quantize_activations`` needs macOS, and keeps only the last
calibration sample's range (coremltools 9.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from build.errors import InputError
from build.quantize.annotate import static_quantizer, weight_quantizer
from build.quantize.pt2e import quantize
from build.quantize.recognise import is_quantized
from build.quantize.weighted import unquantized
from targets.contract import LowerRequest

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array


def quantized(program: ExportedProgram, request: LowerRequest) -> tuple[ExportedProgram, dict[str, int]]:
    """The program at the request's precision, and the ops whose weights stayed in floating point.

    Raises:
        InputError: a name in ``keep_float`` cannot be kept.
    """
    keep = request.keep_float
    if is_quantized(program):
        if keep:
            raise InputError(
                f"--keep-float {keep[0]}: the program brings its own quantisation, which is kept as it is",
                remedy="Take the quantisation off that layer before export.",
            )
        return program, unquantized(program)
    if request.precision == "int8-static":
        made = quantize(program, static_quantizer(keep), request.calibration, keep_float=keep)
    else:
        made = quantize(program, weight_quantizer(8), [_zeros(request)], keep_float=keep)
    return made, unquantized(made, keep)


def _zeros(request: LowerRequest) -> Mapping[str, Array]:
    """One call for weights alone, whose ranges no input changes."""
    import numpy as np

    return {
        t.name: np.zeros([d if isinstance(d, int) else max(d.lo, 1) for d in t.shape], np.dtype(t.dtype))
        for t in request.signature.inputs
    }
