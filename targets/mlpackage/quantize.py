"""Small weights, and 8-bit values where they are calibrated, for Core ML.

8 bits are made in the program, by PT2E: coremltools reads its quantize and dequantize ops, weights become constant
expressions that Core ML expands, values its ``quantize`` and ``dequantize`` operations. Its own
``linear_quantize_activations`` needs macOS, and keeps only the last calibration sample's range (coremltools 9.0).
4 bits are made in the converted model, by coremltools: a program has no integers of 4 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build.errors import InputError
from build.legalize.quantized_graph import brings_own, require_static
from build.quantize.annotate import static_quantizer, weight_quantizer
from build.quantize.pt2e import quantize, quiet
from build.quantize.regions import check_names, packet
from build.quantize.weighted import constants, weight_of
from targets.contract import LowerRequest

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from targets.contract import Array

#: weights of one output channel that share a scale at 4 bits; coremltools' own default.
BLOCK = 32


def quantized(program: ExportedProgram, request: LowerRequest) -> ExportedProgram:
    """The program at an 8-bit precision; at 4 bits, and where it brings its own quantisation, as it is.

    Raises:
        InputError: a name in ``keep_float`` cannot be kept.
        LoweringError: the program's own quantisation is not one that Core ML has.
    """
    keep = request.keep_float
    if brings_own(program, request):
        require_static(program, "Core ML")
        return program
    if request.precision == "int4-weight":
        return program
    if request.precision == "int8-static":
        return quantize(program, _static(keep), request.calibration, keep_float=keep)
    return quantize(program, weight_quantizer(), [_zeros(request)], keep_float=keep)


def _static(keep: Sequence[str]) -> Any:
    """8-bit values and weights; where the values stay float (embeddings, behind kept nodes) 8-bit weights alone."""
    from torchao.quantization.pt2e.quantizer import Quantizer

    values, weights = static_quantizer(keep), weight_quantizer()

    class Both(Quantizer):
        def annotate(self, model: Any) -> Any:
            return weights.annotate(values.annotate(model))

        def validate(self, model: Any) -> None:
            """Nothing to check: every annotation is made by the two."""

    return Both()


def _zeros(request: LowerRequest) -> Mapping[str, Array]:
    """One call for weights alone, whose ranges no input changes."""
    import numpy as np

    return {
        t.name: np.zeros([d if isinstance(d, int) else max(d.lo, 1) for d in t.shape], np.dtype(t.dtype))
        for t in request.signature.inputs
    }


@dataclass(frozen=True, kw_only=True)
class KeptWeight:
    """A weight that stays float.

    Attributes:
        operation: MIL's operation that reads it.
        names: what that operation, or the weight, may be called in the converted model.
    """

    operation: str
    names: frozenset[str]


def kept_weights(program: ExportedProgram, request: LowerRequest) -> dict[str, KeptWeight]:
    """Kept node -> its weight; a batch norm's is that of the layer before it, which coremltools merges it into.

    Raises:
        InputError: a name is no node of the program.
    """
    check_names(program, request.keep_float)
    stored = constants(program)
    found = {}
    for node in program.graph.nodes:
        if node.name not in request.keep_float:
            continue
        norms = {u.name for u in node.users if "batch_norm" in packet(u)}
        layer = node.args[0] if "batch_norm" in packet(node) and len(node.args[0].users) == 1 else node
        weight = weight_of(layer)
        if weight is not None and weight.name in stored:
            names = frozenset({node.name, layer.name, weight.name, *norms})
            found[node.name] = KeptWeight(operation=_operation(layer), names=names)
    return found


def _operation(node: Node) -> str:
    name = packet(node).removeprefix("aten.")
    if name.startswith("conv"):
        return "conv_transpose" if "transpose" in name else "conv"
    return {"linear": "linear", "addmm": "linear", "embedding": "gather"}.get(name, "matmul")


def left_float(found: Mapping[str, int], kept: Mapping[str, KeptWeight]) -> dict[str, int]:
    """The float weights that an artifact holds, without those that the request keeps."""
    rest = Counter(found)
    rest.subtract(Counter(operation for operation, _ in {(k.operation, k.names): k for k in kept.values()}))
    return {op: n for op, n in sorted(rest.items()) if n > 0}


def four_bits(model: Any, kept: Mapping[str, KeptWeight]) -> Any:
    """The converted model with weights of 4 bits in blocks; of 8 in convolutions and rows that are no whole blocks.

    As on every target: 4 bits in convolutions left EfficientNet-Lite0 3 dB, and 58% of its decisions.

    Raises:
        InputError: the weight of a kept node is not to be found in the converted model.
    """
    with quiet():  # progress bars
        import coremltools.optimize.coreml as cto

        known = cto.get_weights_metadata(model, weight_threshold=1)
    names: dict[str, None] = {}
    for node, weight in kept.items():
        readers = {n: {n, *(c.name for c in w.child_ops)} for n, w in known.items() if w.val.ndim > 1}
        name = next((n for n, called in readers.items() if called & weight.names), None)
        if name is None:
            raise InputError(
                f"--keep-float {node}: coremltools merged its weight with others",
                remedy="Keep it at int8-weight, or keep the layer before or after it.",
            )
        names[name] = None
    blocks = cto.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=BLOCK, weight_threshold=1
    )
    rows = cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8", weight_threshold=1)
    fitting = {n: blocks for n, w in known.items() if _fits(w.val) and n not in names}
    config = cto.OptimizationConfig(global_config=rows, op_name_configs={**fitting, **names})
    with quiet():
        return cto.linear_quantize_weights(model, config)


def _fits(values: Any) -> bool:
    return values.ndim == 2 and values.shape[1] % BLOCK == 0
