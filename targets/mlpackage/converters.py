"""Conversion functions that replace coremltools's own where those compute something else than PyTorch.

They speak MIL directly where no ATen rewrite can say the same thing. ``installed`` puts them into coremltools's
registry for one conversion and restores it afterwards, whatever happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Converter = Callable[[Any, Any], None]


def _log(context: Any, node: Any) -> None:
    """``log(x)``: the default epsilon of 1e-45 makes the logarithm of zero -103 instead of -inf."""
    from coremltools.converters.mil.mil import Builder as mb

    x = _float(context[node.inputs[0]])
    context.add(mb.log(x=x, epsilon=0.0, name=node.name))


def _log_to(base: float) -> Converter:
    """``log2`` and ``log10``: coremltools gives their logarithm the default epsilon too."""

    def convert(context: Any, node: Any) -> None:
        from coremltools.converters.mil.mil import Builder as mb

        x = _float(context[node.inputs[0]])
        context.add(mb.mul(x=mb.log(x=x, epsilon=0.0), y=1 / math.log(base), name=node.name))

    return convert


def _float(x: Any) -> Any:
    """Integers cast to fp32, as PyTorch promotes them."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    return x if types.is_float(x.dtype) else mb.cast(x=x, dtype="fp32")


def _zeros_like(base: Converter) -> Converter:
    """Zeros of unknown size: coremltools subtracts the tensor from itself, which is NaN for infinity and NaN."""

    def convert(context: Any, node: Any) -> None:
        from coremltools.converters.mil.mil import Builder as mb
        from coremltools.converters.mil.mil import types

        x = context[node.inputs[0]]
        if not types.is_float(x.dtype) or all(isinstance(size, int) for size in x.shape) or len(node.inputs) > 1:
            base(context, node)
            return
        zero = types.nptype_from_builtin(x.dtype)(0)
        context.add(mb.fill_like(ref_tensor=x, value=zero, name=node.name))

    return convert


def _floor_divide(context: Any, node: Any) -> None:
    """Floor division in the operands' own type: coremltools casts an integer quotient to fp32."""
    from coremltools.converters.mil.frontend.torch.ops import _get_inputs
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil.ops.defs._utils import promote_input_dtypes

    x, y = promote_input_dtypes(_get_inputs(context, node, expected=2))
    context.add(mb.floor_div(x=x, y=y, name=node.name))


def _recurrent(kind: str, base: Converter, outputs: int) -> Converter:
    """A recurrent op of ``torch.export`` gives one tuple; coremltools reads TorchScript's several results."""

    def convert(context: Any, node: Any) -> None:
        from coremltools.converters.mil.frontend.torch.internal_graph import InternalTorchIRNode

        names = [f"{node.name}_result_{i}" for i in range(outputs)]
        inner = InternalTorchIRNode(
            kind=kind,
            name=f"{node.name}_layer",
            inputs=node.inputs,
            outputs=names,
            kwinputs=node.kwinputs,
            meta=node.meta,
        )
        base(context, inner)
        context.add(tuple(context[name] for name in names), torch_name=node.name)

    return convert


def replacements() -> dict[str, Converter]:
    """Registry key of coremltools -> the function that replaces (or adds) its conversion."""
    from coremltools.converters.mil.frontend.torch import ops

    return {
        "log": _log,
        "log2": _log_to(2.0),
        "log10": _log_to(10.0),
        "zeros_like": _zeros_like(ops.zeros_like),
        "floor_divide": _floor_divide,
        "lstm.input": _recurrent("lstm", ops.lstm, 3),
        "rnn_tanh.input": _recurrent("rnn_tanh", ops.rnn_tanh, 2),
        "rnn_relu.input": _recurrent("rnn_relu", ops.rnn_relu, 2),
    }


@contextmanager
def installed(on_node: Callable[[str], None]) -> Iterator[None]:
    """The replacements in place, and ``on_node`` told the name of each node before its conversion."""
    from coremltools.converters.mil.frontend.torch import ops
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY

    registry = _TORCH_OPS_REGISTRY.name_to_func_mapping
    before, convert_one = dict(registry), ops.convert_single_node

    def told(context: Any, node: Any) -> None:
        on_node(node.name)
        convert_one(context, node)

    registry.update(replacements())
    ops.convert_single_node = told
    try:
        yield
    finally:
        ops.convert_single_node = convert_one
        registry.clear()
        registry.update(before)
