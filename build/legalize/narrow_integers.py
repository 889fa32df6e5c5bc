"""Integers of 8 and 16 bits on a runtime that does not let them wrap around: computed in 32 bits, then wrapped.

OpenVINO's CPU plugin bounds 8-bit results at the ends of their type, rounds their quotients, and computes 16-bit ones
in 32 bits without ever cutting them (each tried on 2026.4.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from build.legalize.common import as_dtype, fixed, result_dtype
from build.legalize.core import Decomposition, decomposition, graph_pass
from build.legalize.emit import Emitter
from build.program import op_name, source_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Node

_FAULT = "OpenVINO bounds integers of 8 bits, rounds their quotients, and never cuts those of 16: PyTorch's wrap around"

#: float32, in which the plugin sums products of integers, holds every integer up to here.
_EXACT = 2**24


def _narrow(dtype: Any) -> bool:
    import torch

    return dtype in (torch.int8, torch.uint8, torch.int16)


def _value(node: Any) -> Any:
    return node.meta.get("val") if hasattr(node, "meta") else None


def _wrapped(emit: Emitter, x: Node, dtype: Any) -> Node:
    """A 32-bit integer modulo the size of ``dtype``, as ``dtype``."""
    import torch

    info = torch.iinfo(dtype)
    mask, shift = emit.number(info.max - info.min, torch.int32), -info.min
    if shift:
        x = emit("aten.add.Tensor", x, shift)
    x = emit("aten.bitwise_and.Tensor", x, mask)
    if shift:
        x = emit("aten.sub.Tensor", x, shift)
    return emit("aten._to_copy.default", x, dtype=dtype)


def _wide(emit: Emitter, value: Any, dtype: Any) -> Any:
    """An operand in 32 bits; a number beyond ``dtype`` modulo its size, as PyTorch takes it."""
    import torch

    if hasattr(value, "meta"):
        return value if _value(value).dtype is torch.int32 else emit("aten._to_copy.default", value, dtype=torch.int32)
    if type(value) is int and not -(2**15) <= value < 2**16:
        return value % (torch.iinfo(dtype).max - torch.iinfo(dtype).min + 1)
    return value


def _elementwise(emit: Emitter, node: Node, dtype: Any) -> Node:
    args = [_wide(emit, a, dtype) for a in node.args]
    kwargs = {k: _wide(emit, v, dtype) for k, v in node.kwargs.items()}
    return _wrapped(emit, emit(op_name(node), *args, **kwargs), dtype)


def _cast(emit: Emitter, node: Node, dtype: Any) -> Node | None:
    """Only to 16 bits: the plugin does cut a number that it casts to 8."""
    import torch

    if dtype is not torch.int16 or _value(node.args[0]).dtype not in (torch.int32, torch.int64):
        return None
    return _wrapped(emit, _wide(emit, node.args[0], dtype), dtype)


def _power(emit: Emitter, node: Node, dtype: Any) -> Node | None:
    """Squares and products, each wrapped: none leaves 32 bits."""
    exponent = node.args[1] if len(node.args) > 1 else 2
    if not isinstance(exponent, int) or exponent < 2:
        return None

    def product(a: Any, b: Any) -> Any:
        return _wrapped(emit, emit("aten.mul.Tensor", _wide(emit, a, dtype), _wide(emit, b, dtype)), dtype)

    result: Any = None
    square: Any = node.args[0]
    while exponent:
        if exponent % 2:
            result = square if result is None else product(result, square)
        exponent //= 2
        square = product(square, square) if exponent else square
    return result  # type: ignore[no-any-return]


def _sum(emit: Emitter, node: Node, dtype: Any) -> Node:
    import torch

    kwargs = {**node.kwargs, "dtype": torch.int32}
    return _wrapped(emit, emit(op_name(node), _wide(emit, node.args[0], dtype), *node.args[1:], **kwargs), dtype)


def _product_of_matrices(emit: Emitter, node: Node, dtype: Any) -> Node:
    import torch

    info = torch.iinfo(dtype)
    terms = _value(node.args[-1]).shape[0 if _value(node.args[-1]).dim() == 1 else -2]
    largest = max(info.max, -info.min) ** 2
    if not fixed(terms) or (terms + 1) * largest > _EXACT:
        return _refuse(emit, node, dtype)
    return _elementwise(emit, node, dtype)


def _accumulated(emit: Emitter, node: Node, dtype: Any) -> Node | None:
    if len(node.args) < 4 or not node.args[3]:
        return None
    x, indices, values = node.args[:3]
    new = emit("aten.index_put.default", _wide(emit, x, dtype), indices, _wide(emit, values, dtype), True)
    return _wrapped(emit, new, dtype)


def _refuse(emit: Emitter, node: Node, dtype: Any) -> Node:
    """
    Raises:
        LoweringError: always.
    """
    name = str(dtype).removeprefix("torch.")
    raise LoweringError(
        f"OpenVINO does not let {name} results of {op_name(node)} wrap around as PyTorch does",
        op=op_name(node),
        source=source_of(node),
        remedy="Compute it in int32: cast the operands with .to(torch.int32).",
    )


Rule = Callable[[Emitter, "Node", Any], "Node | None"]


def _rules() -> dict[str, Rule]:
    forms = ("Tensor", "Scalar")
    kinds: dict[Rule, tuple[str, ...]] = {
        _elementwise: (
            *(f"{op}.{form}" for op in ("add", "sub", "rsub", "mul") for form in forms),
            *("neg.default", "abs.default", "div.Tensor_mode", "div.Scalar_mode", "addcmul.default"),
        ),
        _power: ("pow.Tensor_Scalar", "square.default"),
        _cast: ("_to_copy.default", "to.dtype"),
        _sum: ("sum.default", "sum.dim_IntList", "cumsum.default"),
        _accumulated: ("index_put.default",),
        _product_of_matrices: ("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default"),
        _refuse: (
            *("pow.Tensor_Tensor", "pow.Scalar", "addmm.default", "baddbmm.default", "addmv.default", "linear.default"),
            *("prod.default", "prod.dim_int", "cumprod.default", "einsum.default", "index_add.default"),
            *("scatter_add.default", "scatter_reduce.two"),
        ),
    }
    return {f"aten.{op}": rule for rule, ops in kinds.items() for op in ops}


_RULES = _rules()


@graph_pass(fault=_FAULT)
def narrow_integers(program: ExportedProgram) -> ExportedProgram:
    """Sums, differences, products, negations, casts of int8, uint8 and int16 in int32, wrapped explicitly.

    Raises:
        LoweringError: an op whose results of those types cannot be computed so.
    """
    for node in list(program.graph.nodes):
        rule = _RULES.get(op_name(node)) if node.op == "call_function" else None
        dtype = getattr(_value(node), "dtype", None)
        if rule is None or not _narrow(dtype):
            continue
        emit = Emitter(program, node)
        new = rule(emit, node, dtype)
        if new is not None:
            emit.replace(new)
    program.graph_module.recompile()
    return program


def _division(name: str) -> Decomposition:
    def divide(x: Tensor, y: Any, **kwargs: Any) -> Any:
        import torch

        dtype = result_dtype(x, y)
        if not _narrow(dtype) or kwargs.get("rounding_mode", "") is None:
            return NotImplemented
        wide = getattr(torch, name)(as_dtype(x, torch.int32), as_dtype(y, torch.int32), **kwargs)
        # -128 / -1 alone is no int8
        half = -torch.iinfo(dtype).min
        if not half or name in ("remainder", "fmod"):
            return wide.to(dtype)
        wide = torch.bitwise_and(wide + half, torch.full([], 2 * half - 1, dtype=torch.int32)) - half
        return wide.to(dtype)

    return divide


for _name, _forms in (
    ("div", ("Tensor_mode", "Scalar_mode")),
    ("floor_divide", ("default", "Scalar")),
    ("remainder", ("Tensor", "Scalar")),
    ("fmod", ("Tensor", "Scalar")),
):
    decomposition(*(f"aten.{_name}.{form}" for form in _forms), fault=_FAULT, name=f"{_name}_of_narrow_integers")(
        _division(_name)
    )
