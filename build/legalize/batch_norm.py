"""Batch norms: folded into the layer before them, or written out."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from build.legalize.constants import add_constant, constant_value, drop_unused_constants
from build.legalize.core import decomposition, graph_pass

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Node


def _inference_norm(node: Node) -> tuple[list[Any], float, Node] | None:
    """Weight, bias, mean and variance nodes, eps, and the node that holds the result, of a batch norm at inference."""
    import torch

    aten = torch.ops.aten
    if node.op != "call_function":
        return None
    if node.target is aten.batch_norm.default:
        if node.args[5]:
            return None
        return list(node.args[1:5]), float(node.args[7]), node
    if node.target is aten._native_batch_norm_legit_no_training.default:
        users = list(node.users)
        if len(users) != 1 or users[0].target is not operator.getitem or users[0].args[1] != 0:
            return None
        return list(node.args[1:5]), float(node.args[6]), users[0]
    return None


def _scale_and_shift(program: ExportedProgram, parts: list[Any], eps: float) -> tuple[Tensor, Tensor] | None:
    """``y = x * scale + shift`` per channel, in float64; None when a part is not a constant."""
    import torch

    values = [None if p is None else constant_value(program, p) for p in parts]
    if any(p is not None and v is None for p, v in zip(parts, values, strict=True)):
        return None
    weight, bias, mean, var = (None if v is None else v.detach().double() for v in values)
    if mean is None or var is None:
        return None
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias


def _foldable(node: Any, channels_last_dim: bool) -> bool:
    """A convolution or (for rank 2) linear layer whose output channels are the norm's, used by the norm only."""
    import torch

    aten = torch.ops.aten
    if not hasattr(node, "op") or node.op != "call_function" or len(node.users) != 1:
        return False
    convolutions = [aten.conv1d.default, aten.conv1d.padding, aten.conv2d.default, aten.conv2d.padding]
    if node.target in convolutions or node.target is aten.conv3d.default:
        return True
    if node.target is aten.convolution.default:
        return not node.args[6]
    return bool(node.target is aten.linear.default and channels_last_dim)


@graph_pass(
    fault="ExecuTorch's XNNPACK names a folded weight after its layer: a layer shared by two norms gets one of them",
    ops=("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default"),
)
def fold_batch_norm(program: ExportedProgram) -> ExportedProgram:
    """Multiply a batch norm at inference into the layer before it, or make it a product and a sum per channel."""
    changed = False
    for node in list(program.graph.nodes):
        found = _inference_norm(node)
        if found is None:
            continue
        parts, eps, result = found
        factors = _scale_and_shift(program, parts, eps)
        if factors is None:
            continue
        source = node.args[0]
        rank = source.meta["val"].dim()
        new = None
        if _foldable(source, rank == 2):
            new = _fold(program, source, *factors)
        if new is None:
            new = _write_out(program, node, rank, *factors)
        result.replace_all_uses_with(new)
        for old in (result, node) if result is not node else (node,):
            program.graph.erase_node(old)
        for spec in program.graph_signature.output_specs:
            if getattr(spec.arg, "name", None) == result.name:
                spec.arg.name = new.name
        changed = True
    if changed:
        program.graph.eliminate_dead_code()
        drop_unused_constants(program)
    return program


def _fold(program: ExportedProgram, layer: Node, scale: Tensor, shift: Tensor) -> Node | None:
    weight = constant_value(program, layer.args[1])
    bias_node = layer.args[2] if len(layer.args) > 2 else layer.kwargs.get("bias")
    bias = None if bias_node is None else constant_value(program, bias_node)
    if weight is None or (bias_node is not None and bias is None) or not weight.is_floating_point():
        return None
    wide = weight.detach().double() * scale.reshape([-1] + [1] * (weight.dim() - 1))
    offset = shift if bias is None else shift + bias.detach().double() * scale
    name = layer.args[1].name
    new_weight = add_constant(program, f"{name}_normed", wide.to(weight.dtype), layer)
    new_bias = add_constant(program, f"{name}_normed_bias", offset.to(weight.dtype), layer)
    kwargs = {k: v for k, v in layer.kwargs.items() if k != "bias"}
    layer.args = (layer.args[0], new_weight, new_bias, *layer.args[3:])
    layer.kwargs = kwargs
    return layer


def _write_out(program: ExportedProgram, norm: Node, rank: int, scale: Tensor, shift: Tensor) -> Node:
    import torch

    aten = torch.ops.aten
    source = norm.args[0]
    value = source.meta["val"]
    shape = [1, -1] + [1] * (rank - 2)
    factor = add_constant(program, f"{norm.name}_scale", scale.reshape(shape).to(value.dtype), source)
    offset = add_constant(program, f"{norm.name}_shift", shift.reshape(shape).to(value.dtype), source)
    kept = {k: v for k, v in norm.meta.items() if k in ("stack_trace", "nn_module_stack")}
    with program.graph.inserting_before(norm):
        product = program.graph.call_function(aten.mul.Tensor, (source, factor))
        total = program.graph.call_function(aten.add.Tensor, (product, offset))
    for new in (product, total):
        new.meta = {**kept, "val": value}
    return total


def _batch_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Deviations from the channel means, the means and the biased variances, both per channel."""
    import torch

    dims = [0, *range(2, x.dim())]
    mean = torch.mean(x, dims, True)
    deviation = x - mean
    return deviation, mean, torch.mean(deviation * deviation, dims, True)


def _standardised(x: Tensor, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    deviation, mean, var = _batch_statistics(x)
    shape = [1, x.shape[1]] + [1] * (x.dim() - 2)
    y = deviation / torch.sqrt(var + eps)
    if weight is not None:
        y = y * weight.reshape(shape)
    if bias is not None:
        y = y + bias.reshape(shape)
    return y, mean.reshape(-1), var.reshape(-1)


@decomposition("aten.batch_norm.default", fault="ExecuTorch lacks batch norm by batch statistics, or cancels its mean")
def batch_norm_of_batch(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Batch norm by the batch's own statistics where it keeps no running ones."""
    if not training or running_mean is not None:
        return NotImplemented
    return _standardised(x, weight, bias, eps)[0]


@decomposition(
    "aten._native_batch_norm_legit_functional.default",
    fault="ExecuTorch has no batch norm that updates its running statistics",
)
def training_batch_norm(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm in training mode: the output, the saved statistics and the new running ones."""
    import torch

    if not training:
        return NotImplemented
    y, mean, var = _standardised(x, weight, bias, eps)
    count: Any = x.shape[0]
    for size in x.shape[2:]:
        count = count * size
    unbiased = var * (count / (count - 1))
    new_mean = running_mean * (1 - momentum) + mean * momentum
    new_var = running_var * (1 - momentum) + unbiased * momentum
    return y, mean, torch.ones_like(var) / torch.sqrt(var + eps), new_mean, new_var
