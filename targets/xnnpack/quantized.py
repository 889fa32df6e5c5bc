"""Quantised precisions of the ExecuTorch target: PT2E with XNNPACK's quantizer, and weights alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from build.errors import InputError
from build.quantize.annotate import Integers, annotate_static, is_annotated, last_of, weight_quantizer, weight_spec
from build.quantize.pt2e import quantize, without_batch_norms
from build.quantize.recognise import is_quantized
from build.quantize.regions import packet
from build.quantize.weighted import WEIGHTED, weight_of
from targets.contract import Coverage, LowerRequest
from targets.precisions import precision

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


#: Ops whose weights stay float when their values do, since XNNPACK has no kernel for float values and integer weights:
#: the portable kernel that would run them is a hundred times slower.
_FLOAT_KERNELS = tuple(name for name in WEIGHTED if name.startswith("aten.conv"))


def quantized(program: ExportedProgram, request: LowerRequest) -> ExportedProgram:
    """The program with the quantize and dequantize ops of the request's precision; itself at float precisions.

    A program that brings its own quantisation is static already, and is returned as it is.

    Raises:
        InputError: such a program at another quantised precision; a name in ``keep_float`` is no node of the program.
    """
    wanted = precision(request.precision)
    if not wanted.quantized:
        return program
    # Registers the kernels (out variants) of the quantize and dequantize ops that no delegate takes.
    import executorch.kernels.quantized  # noqa: F401

    if is_quantized(program):
        if wanted.activations != "static" or request.keep_float:
            raise already_quantized(request)
        return program
    program, keep = without_batch_norms(program, request.keep_float)
    quantizer: Any
    if wanted.activations == "static":
        quantizer = _static(keep)
    elif wanted.activations == "dynamic":
        quantizer = _dynamic()
    else:
        quantizer = _weights({"aten.linear": wanted.weight_bits})
    return quantize(program, quantizer, request.calibration, keep_float=keep)


#: which weights the recipe of ``int4-weight`` gives how many bits
FOUR_BITS = "linear layers have 4-bit weights; convolutions and embeddings 8-bit ones"


def warnings(request: LowerRequest, coverage: Coverage) -> tuple[str, ...]:
    """What a release engineer must know of a quantised artifact."""
    wanted = precision(request.precision)
    if not wanted.quantized:
        return ()
    found = []
    slow = coverage.fallback.get("aten.convolution.default", 0)
    if slow:
        found.append(
            f"{slow} convolutions run on the slow portable kernels: XNNPACK has none for float values and 8-bit "
            "weights (int8-static has them all)"
        )
    library = sorted(op for op in coverage.fallback if op.startswith("quantized_decomposed."))
    if library:
        found.append(f"the application must link ExecuTorch's quantized kernels, for {', '.join(library)}")
    return tuple(found)


def already_quantized(request: LowerRequest) -> InputError:
    """The error for a program with its own quantisation where another one is asked for."""
    if request.keep_float:
        return InputError(
            f"--keep-float {request.keep_float[0]}: the program is quantised already, and is lowered as it is",
            remedy="Leave that layer in float where the program is quantised.",
        )
    return InputError(
        f"the program is quantised already: it cannot be quantised again as {request.precision}",
        remedy="Build it at int8-static, or export the float model.",
    )


def _static(keep: Sequence[str]) -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xq

    config = _with_fine_weights(xq.get_symmetric_quantization_config(is_per_channel=True))
    weights = weight_quantizer(leave=_FLOAT_KERNELS)

    class Static(xq.XNNPACKQuantizer):
        """XNNPACK's, on values that are integers anyhow; what it doesn't know by name, and embeddings, added."""

        def _annotate_for_quantization_config(self, model: GraphModule) -> GraphModule:
            integers = Integers(model.graph, keep)
            self.set_filter_function(lambda node: node.op != "call_function" or node in integers)
            return _bounds_inside(super()._annotate_for_quantization_config(model))

        def annotate(self, model: GraphModule) -> GraphModule:
            model = super().annotate(model)
            annotate_static(model.graph, keep, config.input_activation)
            annotated: GraphModule = weights.annotate(model)
            return annotated

    return Static().set_global(config)


def _with_fine_weights(config: Any) -> Any:
    """XNNPACK's configuration without its floor of 1/4096 under a weight's scale, which small weights fall below."""
    from torchao.quantization.pt2e.quantizer import QuantizationConfig

    return QuantizationConfig(
        config.input_activation, config.output_activation, weight_spec(0), config.bias, config.is_qat
    )


def _bounds_inside(model: GraphModule) -> GraphModule:
    """Move the quantisation of a convolution's or linear layer's value behind its ReLU6 or hard tanh.

    XNNPACK's quantizer knows ReLU alone; its kernels have any bounds, and a range without what they cut off is finer.
    """
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation

    for node in model.graph.nodes:
        annotation = node.meta.get("quantization_annotation")
        if annotation is None or annotation.output_qspec is None or not _is_layer(node):
            continue
        last = last_of(node)
        if last is not node:
            spec, annotation.output_qspec = annotation.output_qspec, None
            last.meta["quantization_annotation"] = QuantizationAnnotation(output_qspec=spec, _annotated=True)
    return model


def _is_layer(node: Node) -> bool:
    return node.op == "call_function" and (packet(node).startswith("aten.conv") or packet(node) == "aten.linear")


def _weights(bits: Mapping[str, int] | None = None) -> Any:
    """A quantizer of weights alone that leaves those of depthwise convolutions in float.

    They are a few hundredths of a network's weights; as integers each would send its layer, and the values before and
    behind it, from XNNPACK to a portable kernel that is a hundred times slower.
    """
    quantizer = weight_quantizer(bits)
    annotate = quantizer.annotate

    def without_depthwise(model: GraphModule) -> GraphModule:
        annotated: GraphModule = annotate(model)
        for node in annotated.graph.nodes:
            if _is_depthwise(node):
                node.meta.pop("quantization_annotation", None)
        return annotated

    quantizer.annotate = without_depthwise
    return quantizer


def _is_depthwise(node: Node) -> bool:
    """A convolution each of whose channels reads one channel."""
    weight = weight_of(node)
    if weight is None or packet(node) not in ("aten.conv1d", "aten.conv2d"):
        return False
    return bool(node.args[0].meta["val"].shape[1] != 1 and weight.meta["val"].shape[1] == 1)


def _dynamic() -> Any:
    """Dynamic ranges where XNNPACK has kernels for them (2D convolutions, linear layers); weights alone elsewhere."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xq

    config = _with_fine_weights(xq.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True))
    weights = _weights()

    class Dynamic(xq.XNNPACKQuantizer):
        """XNNPACK's, which passes over a convolution with a ReLU behind it, and weights."""

        def annotate(self, model: GraphModule) -> GraphModule:
            model = super().annotate(model)
            for node in model.graph.nodes:
                if _is_plain_convolution(node) and not is_annotated(node):
                    _annotate_dynamic(node, config)
            annotated: GraphModule = weights.annotate(model)
            return annotated

    return Dynamic().set_global(config)


def _is_plain_convolution(node: Node) -> bool:
    """A 2D convolution that is not depthwise, with a stored weight."""
    if node.op != "call_function" or packet(node) != "aten.conv2d":
        return False
    weight = node.args[1]
    return weight.op == "get_attr" and weight.meta["val"].shape[1] != 1


def _annotate_dynamic(node: Node, config: Any) -> None:
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation

    inputs = {node.args[0]: config.input_activation, node.args[1]: config.weight}
    node.meta["quantization_annotation"] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
