"""Which nodes XNNPACK may take: its own partitioner's rules, less what it computes differently from PyTorch.

A node kept out runs on ExecuTorch's portable kernels. Each rule below was measured with executorch 1.5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: XNN_MAX_TENSOR_DIMS in xnnpack.h.
MAX_RANK = 6

#: Edge ops that XNNPACK computes differently from PyTorch, and how.
DIFFERENT: dict[str, str] = {
    "aten.exp.default": "exp(NaN) is 0",
    "aten.log.default": "log of infinity and of negative numbers is about 88",
    "aten.sqrt.default": "sqrt(inf) is NaN",
    "aten.rsqrt.default": "rsqrt(-0.0) and rsqrt of subnormal numbers differ",
    "aten.maximum.default": "NaN is dropped",
    "aten.minimum.default": "NaN is dropped",
    "aten.max.dim": "the converter stops without keepdim, and NaN is dropped",
}

#: Edge ops that become a reshape in XNNPACK, which can infer only one size.
_RESHAPES = ("aten.unsqueeze_copy.default", "aten.squeeze_copy.dims", "aten.squeeze_copy.dim", "aten.view_copy.default")


def edge_name(node: Any) -> str:
    """``aten.view_copy.default`` for a node of an edge graph; the function's name for one that is no ATen op."""
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    return f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"


def _tensors(node: Any) -> list[Any]:
    import torch

    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]


def _too_many_dimensions(node: Any) -> bool:
    return any(t.dim() > MAX_RANK for t in _tensors(node))


def _dynamic_sizes(tensor: Any) -> int:
    return sum(1 for size in tensor.shape if not isinstance(size, int))


def _ambiguous_reshape(node: Any) -> bool:
    """More than one size of the result is dynamic."""
    return edge_name(node) in _RESHAPES and _dynamic_sizes(node.meta["val"]) > 1


def _reshaped_convolution(node: Any) -> bool:
    """A one-dimensional convolution (XNNPACK inserts a dimension) of which batch and length are both dynamic."""
    if edge_name(node) != "aten.convolution.default":
        return False
    value = node.meta["val"]
    return value.dim() == 3 and max(_dynamic_sizes(value), _dynamic_sizes(node.args[0].meta["val"])) > 1


def _fractional_resize(node: Any) -> bool:
    """A bilinear resize whose stated factor is not out / in: XNNPACK knows only out / in."""
    if edge_name(node) != "aten.upsample_bilinear2d.vec":
        return False
    factors = node.args[3] if len(node.args) > 3 else node.kwargs.get("scale_factors")
    if factors is None or node.args[2]:
        return False
    sizes = zip(node.args[0].meta["val"].shape[-2:], node.meta["val"].shape[-2:], factors, strict=True)
    return any(n * factor != out for n, out, factor in sizes)


def _tanh_gelu(node: Any) -> bool:
    return edge_name(node) == "aten.gelu.default" and node.kwargs.get("approximate", "none") != "none"


def _odd_padding_value(node: Any) -> bool:
    """A pad by negative amounts (a crop): XNNPACK's sizes are unsigned."""
    if edge_name(node) != "aten.constant_pad_nd.default":
        return False
    return any(not isinstance(p, int) or p < 0 for p in node.args[1])


def _pad_ranged_at_run_time(node: Any) -> bool:
    """A padding whose value is given a range at run time: where the delegate's own input is padded, XNNPACK fails to
    propagate its shape (xnn_status_invalid_parameter when it runs)."""
    if edge_name(node) != "aten.constant_pad_nd.default":
        return False
    return any(edge_name(user).startswith("quantized_decomposed.choose_qparams") for user in node.users)


def _integer_cast(node: Any) -> bool:
    """A cast between integers and floats: XNNPACK copies the bytes. A product's partition can drag one in."""
    if node.op != "call_function" or "to_dim_order_copy" not in edge_name(node):
        return False
    return bool(node.args[0].meta["val"].dtype != node.meta["val"].dtype)


RULES: tuple[Callable[[Any], bool], ...] = (
    lambda node: edge_name(node) in DIFFERENT,
    _too_many_dimensions,
    _ambiguous_reshape,
    _reshaped_convolution,
    _fractional_resize,
    _tanh_gelu,
    _odd_padding_value,
    _pad_ranged_at_run_time,
)


def kept_out(node: Any) -> bool:
    """Whether a node must stay on the portable kernels."""
    return any(rule(node) for rule in RULES)


def partitioner() -> Any:
    """XNNPACK's partitioner with ``kept_out`` added to the constraints of every op."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return XnnpackPartitioner(configs=[_restricted(config) for config in ALL_PARTITIONER_CONFIGS])


def _restricted(config: Any) -> Any:
    from executorch.backends.xnnpack.partition.config.gemm_configs import AddmmConfig, GEMMConfig, LinearConfig

    def check_constraints(self: Any, node: Any, ep: Any) -> bool:
        return not kept_out(node) and bool(config.check_constraints(self, node, ep))

    def get_partition(self: Any, node: Any, ep: Any) -> list[Any]:
        nodes: list[Any] = config.get_partition(self, node, ep)
        return [] if any(_integer_cast(n) for n in nodes) else nodes

    members: dict[str, Any] = {"check_constraints": check_constraints, "get_partition": get_partition}
    if issubclass(config, AddmmConfig):
        # Its own rule takes whatever the source linear holds, dequantisation of the weight included.
        members["get_deps"] = GEMMConfig.get_deps
    if issubclass(config, LinearConfig):
        members["_detect_precision"] = _precision_of_linear
        members["_get_weight_deps"] = _weight_of_linear
    return type(config.__name__, (config,), members)


def _weights_alone(config: Any, node: Any) -> bool:
    """A linear layer over floats whose weight is 8-bit integers with a scale per row: XNNPACK has a kernel for it."""
    from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_per_channel

    weight, value = node.args[config.weight_idx], node.args[config.act_idx]
    return is_dequant(weight) and is_per_channel(weight) and not is_dequant(value)


def _precision_of_linear(self: Any, node: Any) -> Any:
    from executorch.backends.xnnpack.partition.config.gemm_configs import GEMMConfig
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

    return ConfigPrecisionType.FP32 if _weights_alone(self, node) else GEMMConfig._detect_precision(self, node)


def _weight_of_linear(self: Any, node: Any, ep: Any, precision: Any) -> Any:
    from executorch.backends.xnnpack.partition.config.gemm_configs import LinearConfig
    from executorch.backends.xnnpack.utils.utils import is_param_node

    if not _weights_alone(self, node):
        return LinearConfig._get_weight_deps(self, node, ep, precision)
    dequantize = node.args[self.weight_idx]
    stored = dequantize.all_input_nodes
    if not all(is_param_node(ep, n) for n in stored):
        return False, []
    return True, [dequantize, *stored]
