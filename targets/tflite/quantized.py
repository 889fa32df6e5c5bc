"""Quantised precisions of the LiteRT target: 8-bit values through PT2E, weights alone in the file itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build.errors import InputError
from build.legalize.constants import add_constant, constant_value, drop_unused_constants
from build.legalize.marks import Kept
from build.program import op_name
from build.quantize.annotate import static_quantizer
from build.quantize.pt2e import quantize, without_batch_norms
from build.quantize.recognise import is_quantized
from build.quantize.weighted import constants
from targets.contract import Arithmetic, LowerRequest
from targets.precisions import Precision, precision
from targets.tflite import weights

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one request is quantised.

    Attributes:
        precision: the request's.
        program: the program to convert; at int8-static it has quantize and dequantize ops.
        kept: the nodes that stay float.
        own: the program brought its quantisation with it.
    """

    precision: Precision
    program: ExportedProgram
    kept: Kept
    own: bool

    @staticmethod
    def of(program: ExportedProgram, request: LowerRequest) -> Recipe:
        """Mark the program's nodes, and quantise its values where the precision says so.

        Raises:
            InputError: a name in ``keep_float`` is no node of the program; the program is quantised already and
                another quantisation is asked for.
        """
        wanted = precision(request.precision)
        own = is_quantized(program)
        if own and wanted.quantized:
            _refuse_again(request, wanted)
        kept = Kept.mark(program, request.keep_float)
        if own:
            program = unfold_weights(program)
        if wanted.activations == "static" and not own:
            program, keep = without_batch_norms(program, request.keep_float)
            quantizer = static_quantizer(keep)
            program = quantize(program, quantizer, request.calibration, keep_float=keep, fold_weights=False)
        return Recipe(precision=wanted, program=program, kept=kept, own=own)

    def apply(self, model: Any) -> tuple[dict[str, int], Arithmetic | None]:
        """Quantise the weights of a converted ``ModelT`` in place.

        Returns:
            The ops whose weights stay float, counted; and what is computed in integers, where values are to be.

        Raises:
            InputError: nothing in the file is left of a node that is to stay float.
        """
        if not self.precision.quantized:
            return {}, None
        present = {
            name
            for graph in model.subgraphs
            for operator in graph.operators
            for name in weights.names_of(graph, operator)
        }
        kept = self.kept.region(present).ops if self.kept.names else frozenset()
        dynamic = self.precision.activations == "dynamic"
        if not self.own:
            weights.quantize_weights(model, kept, dynamic=dynamic, bits=self.precision.weight_bits)
        ranged = self.precision.activations != "float"
        computed = weights.arithmetic(model, kept, dynamic=dynamic) if ranged else None
        return weights.unquantized(model, kept), computed


def unfold_weights(program: ExportedProgram) -> ExportedProgram:
    """Turn stored integer weights back into floats with a quantize op each: the only form that litert-torch reads.

    The floats are the integers times their scale, so the quantize op gives the same integers again.
    """
    import torch

    known = constants(program)
    for node in list(program.graph.nodes):
        if node.op != "call_function" or "dequantize_per_" not in op_name(node) or node.args[0].name not in known:
            continue
        values = [constant_value(program, a) if hasattr(a, "meta") else a for a in node.args]
        with torch.no_grad():
            weight = add_constant(program, f"{node.args[0].name}_wide", node.target(*values, **node.kwargs), node)
        with program.graph.inserting_before(node):
            quantize = program.graph.call_function(_inverse(node.target), (weight, *node.args[1:]))
        quantize.meta = {**node.meta, "val": node.args[0].meta["val"]}
        node.replace_input_with(node.args[0], quantize)
    drop_unused_constants(program)
    program.graph_module.recompile()
    return program


def _inverse(target: Any) -> Any:
    """The quantize op of a dequantize op."""
    import torch

    space, name = target._schema.name.split("::")
    packet = getattr(getattr(torch.ops, space), name.removeprefix("de"))
    return getattr(packet, target._overloadname)


def _refuse_again(request: LowerRequest, wanted: Precision) -> None:
    if request.keep_float:
        raise InputError(
            f"--keep-float {request.keep_float[0]}: the program is quantised already, and is lowered as it is",
            remedy="Leave that layer in float where the program is quantised.",
        )
    if wanted.activations != "static":
        raise InputError(
            f"the program is quantised already: it cannot be quantised again as {request.precision}",
            remedy="Build it at int8-static, or export the float model.",
        )
