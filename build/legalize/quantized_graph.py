"""Programs that bring their own quantisation (PT2E, QAT): their quantize and dequantize ops in one plain form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from build.errors import InputError, LoweringError
from build.legalize.constants import add_constant, constant_value, drop_unused_constants
from build.legalize.core import graph_pass
from build.program import op_name, source_of
from build.quantize.recognise import is_quantized
from targets.contract import LowerRequest

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_SPACE = "quantized_decomposed."
QUANTIZE = (f"{_SPACE}quantize_per_tensor.default", f"{_SPACE}quantize_per_channel.default")
DEQUANTIZE = (f"{_SPACE}dequantize_per_tensor.default", f"{_SPACE}dequantize_per_channel.default")
#: The same with scale and zero point as tensors instead of numbers.
_WITH_TENSORS = tuple(
    f"{_SPACE}{kind}_per_tensor.{overload}" for kind in ("quantize", "dequantize") for overload in ("tensor", "tensor2")
)
_AFFINE = ("torchao.quantize_affine.default", "torchao.dequantize_affine.default")


def calls(program: ExportedProgram, *names: str) -> Iterator[Node]:
    """The nodes that call one of the ops ``names``."""
    yield from (n for n in list(program.graph.nodes) if n.op == "call_function" and op_name(n) in names)


def bounds(node: Node) -> tuple[int, int]:
    """``quant_min`` and ``quant_max`` of a quantize or dequantize op."""
    at = 4 if "per_channel" in op_name(node) else 3
    return int(node.args[at]), int(node.args[at + 1])


def brings_own(program: ExportedProgram, request: LowerRequest) -> bool:
    """Whether the program is quantised already, which then decides its precision.

    Raises:
        LoweringError: the request is for another quantised precision than int8-static.
        InputError: the request keeps nodes in floating point.
    """
    if not is_quantized(program):
        return False
    if request.precision not in ("fp32", "fp16", "int8-static"):
        raise LoweringError(
            f"the program brings its own quantisation, and {request.precision} is another",
            op="the program",
            remedy="Build it at int8-static, or give Edgeport the float model.",
        )
    if request.keep_float:
        raise InputError(
            f"--keep-float {request.keep_float[0]}: the program brings its own quantisation, which stays as it is",
            remedy="Leave that layer out where the model is quantised.",
        )
    return True


def require_static(program: ExportedProgram, runtime: str) -> None:
    """Stop at quantisation that is not 8-bit with fixed ranges.

    Raises:
        LoweringError: names the op and its line.
    """
    import torch

    for node in program.graph.nodes:
        if node.op != "call_function" or not op_name(node).startswith((_SPACE, "torchao.")):
            continue
        plain = op_name(node) in (*QUANTIZE, *DEQUANTIZE)
        if plain and node.args[-1] in (torch.int8, torch.uint8):
            continue
        kind = f"with {node.args[-1]}" if plain else "with ranges that it computes at run time, or in blocks"
        raise LoweringError(
            f"the program quantises {kind} ({op_name(node)}), and {runtime} takes 8-bit integers with fixed ranges",
            op=op_name(node),
            source=source_of(node),
            remedy="Quantise the model with a static 8-bit recipe, or give Edgeport the float model.",
        )


def _replace(program: ExportedProgram, node: Node, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with program.graph.inserting_before(node):
        new = program.graph.call_function(op, args, kwargs)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    program.graph.erase_node(node)


def _numbers(program: ExportedProgram, node: Node) -> bool:
    """Turn constant scale and zero-point tensors of one op into numbers."""
    from build.legalize.core import resolve_op

    scale, zero = (constant_value(program, a) if hasattr(a, "op") else a for a in node.args[1:3])
    if scale is None or zero is None:
        return False
    plain = resolve_op(op_name(node).rpartition(".")[0] + ".default")
    low, high = (int(a) for a in node.args[3:5])
    _replace(program, node, plain, (node.args[0], float(scale), int(zero), low, high, node.args[5]), dict(node.kwargs))
    return True


def _axis(block: list[int], shape: list[Any]) -> int | None:
    """The one axis along which each slice has its own scale; -1 for one scale for all; None for blocks inside."""
    own = [i for i, (b, n) in enumerate(zip(block, shape, strict=True)) if b != n]
    if not own:
        return -1
    return own[0] if len(own) == 1 and block[own[0]] == 1 else None


def _from_affine(program: ExportedProgram, node: Node) -> bool:
    """One of torchao's ``*_affine`` ops with constant scales, in the older spelling."""
    import torch

    named = {a.name: v for a, v in zip(node.target._schema.arguments, node.args, strict=False)} | node.kwargs
    scale, zero = constant_value(program, named["scale"]), constant_value(program, named.get("zero_point"))
    axis = _axis(list(named["block_size"]), list(node.args[0].meta["val"].shape))
    if scale is None or axis is None or (zero is None and named.get("zero_point") is not None):
        return False
    making = "dequantize" not in op_name(node)
    dtype = named["output_dtype"] if making else named["input_dtype"]
    if dtype.is_floating_point or (not making and node.meta["val"].dtype is not torch.float32):
        return False
    zero = torch.zeros_like(scale, dtype=torch.int64) if zero is None else zero
    if zero.is_floating_point() and not bool((zero == zero.round()).all()):
        return False
    info = torch.iinfo(dtype)
    low, high = named.get("quant_min"), named.get("quant_max")
    ends = (info.min if low is None else int(low), info.max if high is None else int(high), dtype)
    ops = torch.ops.quantized_decomposed
    if axis < 0:
        op = ops.quantize_per_tensor.default if making else ops.dequantize_per_tensor.default
        _replace(program, node, op, (node.args[0], float(scale), int(zero), *ends), {})
        return True
    op = ops.quantize_per_channel.default if making else ops.dequantize_per_channel.default
    scales = add_constant(program, f"{node.name}_scales", scale.reshape(-1).float(), node)
    zeros = add_constant(program, f"{node.name}_zero_points", zero.reshape(-1).long(), node)
    _replace(program, node, op, (node.args[0], scales, zeros, axis, *ends), {})
    return True


@graph_pass(
    fault="Converters read the scales of quantisation as numbers, and store weights as integers only when they are",
    ops=(*_WITH_TENSORS, *_AFFINE),
)
def quantization_constants(program: ExportedProgram) -> ExportedProgram:
    """Scales as numbers, weights as the integers that they are quantised to; 32-bit biases as floats."""
    import torch
    import torch.ao.quantization.fx._decomposed

    changed = [_numbers(program, n) for n in calls(program, *_WITH_TENSORS)]
    changed += [_from_affine(program, n) for n in calls(program, *_AFFINE)]
    for node in calls(program, *QUANTIZE, *DEQUANTIZE):
        making = op_name(node) in QUANTIZE
        operands = [constant_value(program, n) for n in node.all_input_nodes]
        wide = node.args[-1] not in (torch.int8, torch.uint8)
        if any(v is None for v in operands) or not (making or wide):
            continue
        left = dict(zip(node.all_input_nodes, operands, strict=True))
        with torch.no_grad():
            args = torch.fx.node.map_arg(node.args, left.__getitem__)
            value = node.target(*args, **node.kwargs)
        stored = add_constant(program, f"{node.all_input_nodes[0].name}_{node.name}", value, node)
        node.replace_all_uses_with(stored)
        program.graph.erase_node(node)
        changed.append(True)
    if any(changed):
        drop_unused_constants(program)
    return program


@graph_pass(
    fault="Converters quantise to the whole range of an integer type, whatever quant_min and quant_max say",
    ops=QUANTIZE,
)
def quantization_bounds(program: ExportedProgram) -> ExportedProgram:
    """Clamp a value before it is quantised to fewer steps than its integer type has."""
    import torch

    for node in calls(program, QUANTIZE[0]):
        value, scale, zero, low, high, dtype = node.args
        info = torch.iinfo(dtype)
        if (low, high) == (info.min, info.max):
            continue
        ends = [None if end == limit else (end - zero) * scale for end, limit in ((low, info.min), (high, info.max))]
        with program.graph.inserting_before(node):
            clamped = program.graph.call_function(torch.ops.aten.clamp.default, (value, *ends))
        clamped.meta = {**node.meta, "val": value.meta["val"]}
        node.args = (clamped, scale, zero, info.min, info.max, dtype)
    return program
