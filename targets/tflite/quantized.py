"""Quantised precisions of the LiteRT target: 8-bit values through PT2E, weights alone in the file itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.quantize.annotate import static_quantizer
from build.quantize.pt2e import quantize, without_batch_norms
from build.quantize.recognise import is_quantized
from targets.contract import LowerRequest
from targets.precisions import precision

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def quantized(program: ExportedProgram, request: LowerRequest) -> ExportedProgram:
    wanted = precision(request.precision)
    if wanted.activations != "static" or is_quantized(program):
        return program
    program, keep = without_batch_norms(program, request.keep_float)
    return quantize(program, static_quantizer(keep), request.calibration, keep_float=keep, fold_weights=False)
