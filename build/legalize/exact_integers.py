"""Integers beyond 2**24 on a runtime that computes many integer ops in float32.

OpenVINO's CPU plugin adds, subtracts, multiplies, takes maximum and minimum of two, masks bits, sorts, gathers and
sums up running in 32-bit integers; it reduces, compares, selects and divides in float32 (each tried on 2026.4.1).
The second kind is written here with the first, wherever the operands are not known to be small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from build.legalize.bounds import Bounds
from build.legalize.common import dims_of
from build.legalize.core import graph_pass
from build.legalize.emit import Emitter
from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: float32 holds every integer up to here.
EXACT = 2**24

#: an integer is split below this bit: both parts are exact in float32.
_SPLIT = 2**16

#: the plugin's integers go from -_END to _END - 1.
_END = 2**31


def _dtype(value: Any) -> Any:
    return value.meta["val"].dtype if hasattr(value, "meta") else None


def _wide(value: Any) -> bool:
    """Whether an operand is a number, or a tensor of integers or bools."""
    import torch

    if hasattr(value, "meta"):
        return _dtype(value) in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    return isinstance(value, int)


def _argument(node: Node, at: int, name: str, default: Any = None) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def _tensor(emit: Emitter, value: Any, dtype: Any) -> Node:
    """An operand as a tensor of ``dtype``."""
    if not hasattr(value, "meta"):
        return emit.number(int(value), dtype)
    return value if _dtype(value) == dtype else emit("aten._to_copy.default", value, dtype=dtype)  # type: ignore[no-any-return]


def _extreme(emit: Emitter, x: Node, dims: list[int], keepdim: bool, op: str) -> Node:
    """The largest (smallest) high part, and among its holders the largest (smallest) low part."""
    dtype = _dtype(x)
    low = emit("aten.bitwise_and.Tensor", x, emit.number(_SPLIT - 1, dtype))
    high = emit("aten.sub.Tensor", x, low)
    best = emit(f"aten.{op}.default", high, dims, True)
    outside = emit.number(-1 if op == "amax" else _SPLIT, dtype)
    among = emit("aten.where.self", emit("aten.eq.Tensor", high, best), low, outside)
    last = emit(f"aten.{op}.default", among, dims, keepdim)
    if not keepdim:
        best = emit("aten.squeeze.dims", best, dims)
    return emit("aten.add.Tensor", best, last)


def _amax(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    x: Any = node.args[0]
    if bounds.within(x, EXACT) or not x.meta["val"].dim():
        return None
    dims, keepdim = dims_of(x.meta["val"], _argument(node, 1, "dim")), _argument(node, 2, "keepdim", False)
    return _extreme(emit, x, dims, keepdim, op_name(node).split(".")[1])


def _max_all(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    x: Any = node.args[0]
    if bounds.within(x, EXACT) or not x.meta["val"].dim():
        return None
    return _extreme(emit, x, dims_of(x.meta["val"], None), False, "a" + op_name(node).split(".")[1])


def _max_dim(emit: Emitter, node: Node, bounds: Bounds) -> tuple[Node, ...] | None:
    x, dim = node.args[0], node.args[1]
    if bounds.within(x, EXACT) or not x.meta["val"].dim():  # type: ignore[union-attr]
        return None
    op, keepdim = op_name(node).split(".")[1], _argument(node, 2, "keepdim", False)
    value = _extreme(emit, x, dims_of(x.meta["val"], dim), keepdim, f"a{op}")  # type: ignore[arg-type,union-attr]
    return value, emit(f"aten.arg{op}.default", x, dim, keepdim)


def _sum(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    """The last of the running sums, which are computed in integers."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    x: Any = node.args[0]
    dims, keepdim = dims_of(x.meta["val"], _argument(node, 1, "dim")), _argument(node, 2, "keepdim", False)
    shape, count = x.meta["val"].shape, bounds.count(x, _argument(node, 1, "dim"))
    if bounds.within(x, 2 if count is None else EXACT // max(count, 1) + 1) or not len(shape):
        return None
    if not all(statically_known_true(shape[d] >= 1) for d in dims):
        return None
    total = _tensor(emit, x, _dtype(node))
    for d in dims:
        total = emit("aten.slice.Tensor", emit("aten.cumsum.default", total, d), d, -1, 2**63 - 1)
    return total if keepdim else emit("aten.squeeze.dims", total, dims)


def _compare(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    """Through a difference, which is zero for equal numbers alone: what goes beyond 32 bits comes back as another."""
    import torch

    left, right = node.args[0], node.args[1]
    # a small number is told from any other: beyond 2**24 float32 rounds to nothing smaller
    if any(bounds.within(v, EXACT) for v in (left, right)):
        return None
    op = op_name(node).split(".")[1]
    dtype = torch.result_type(*(v.meta["val"] if hasattr(v, "meta") else v for v in (left, right)))  # type: ignore[union-attr]
    a, b = _tensor(emit, left, dtype), _tensor(emit, right, dtype)
    if op in ("lt", "ge"):  # the larger of the two is not the left one
        b = emit("aten.maximum.default", a, b)
    elif op in ("gt", "le"):
        a, b = b, emit("aten.maximum.default", a, b)
    difference = emit("aten.sub.Tensor", a, b)
    return emit(f"aten.{'eq' if op in ('eq', 'ge', 'le') else 'ne'}.Scalar", difference, 0)


def _select(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    """``b + (a - b) * condition``: exact whatever it passes through, as integers that wrap around are."""
    filled = op_name(node).startswith("aten.masked_fill")
    condition, a, b = (node.args[1], node.args[2], node.args[0]) if filled else node.args
    if bounds.within(a, EXACT + 1) and bounds.within(b, EXACT + 1):
        return None
    dtype = _dtype(node)
    if bounds.of(b) == (-_END, -_END):  # OpenVINO adds what a constant subtracts, and of this one makes 2**31 - 1
        a, b, condition = b, a, emit("aten.logical_not.default", condition)
    first, second = _tensor(emit, a, dtype), _tensor(emit, b, dtype)
    chosen = emit("aten.mul.Tensor", emit("aten.sub.Tensor", first, second), _tensor(emit, condition, dtype))
    return emit("aten.add.Tensor", second, chosen)


def _clamp(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    op = op_name(node).split(".")[1]
    low, high = _argument(node, 1, "min"), _argument(node, 2, "max")
    if op in ("clamp_max", "relu"):
        low, high = (0, None) if op == "relu" else (None, _argument(node, 1, "max"))
    if bounds.within(node.args[0], EXACT + 1) or not all(_wide(v) for v in (low, high) if v is not None):
        return None
    x = _tensor(emit, node.args[0], _dtype(node))
    if low is not None:
        x = emit("aten.maximum.default", x, _tensor(emit, low, _dtype(node)))
    if high is not None:  # not as a minimum: OpenVINO would make one clamp of the two, in float32
        top = _tensor(emit, high, _dtype(node))
        x = emit("aten.sub.Tensor", emit("aten.add.Tensor", x, top), emit("aten.maximum.default", x, top))
    return x


def _pad(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    """Only the padding's own value is rounded: zeros around the difference from it."""
    pad = op_name(node) == "aten.pad.default"
    x, pads, value = node.args[0], node.args[1], _argument(node, 3 if pad else 2, "value") or 0
    if pad and _argument(node, 2, "mode", "constant") != "constant":
        return None
    if value != int(value) or bounds.within(int(value), EXACT + 1):
        return None
    value = int(value)  # pad takes a float, and gives integers of it
    around = emit("aten.constant_pad_nd.default", emit("aten.sub.Tensor", x, value), pads, 0)
    return emit("aten.add.Tensor", around, value)


def _quotient(emit: Emitter, a: Node, b: Any, dtype: Any) -> tuple[Node, Node]:
    """Quotient towards zero and remainder.

    The first quotient is wrong by a few hundred over ``b``; what is left over is small enough for a second, exact one,
    and where that went past the number by a rounding of ``b``, its sign tells.
    """

    def divided(x: Node) -> tuple[Node, Node]:
        q = emit("aten.div.Tensor_mode", x, b, rounding_mode="trunc")
        return q, emit("aten.sub.Tensor", x, emit("aten.mul.Tensor", q, b))

    first, rest = divided(a)
    second, rest = divided(rest)
    past = emit(
        "aten.lt.Scalar", emit("aten.mul.Tensor", emit("aten.sign.default", rest), emit("aten.sign.default", a)), 0
    )
    sign = emit("aten.sign.default", b) if hasattr(b, "meta") else (1 if b > 0 else -1)
    step = emit(
        "aten.mul.Tensor", emit("aten.mul.Tensor", emit("aten.sign.default", rest), sign), _tensor(emit, past, dtype)
    )
    quotient = emit("aten.add.Tensor", emit("aten.add.Tensor", first, second), step)
    return quotient, emit("aten.sub.Tensor", rest, emit("aten.mul.Tensor", step, b))


def _divide(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    fmod = op_name(node).startswith("aten.fmod")
    if (not fmod and node.kwargs.get("rounding_mode") != "trunc") or bounds.within(node.args[0], EXACT):
        return None
    if node.args[1] == 0:
        return None
    dtype = _dtype(node)
    b = _tensor(emit, node.args[1], dtype) if hasattr(node.args[1], "meta") else node.args[1]
    return _quotient(emit, _tensor(emit, node.args[0], dtype), b, dtype)[fmod]


def _power(emit: Emitter, node: Node, bounds: Bounds) -> Node | None:
    exponent = node.args[1] if len(node.args) > 1 else 2
    if not isinstance(exponent, int) or not 2 <= exponent <= 4 or bounds.within(node.args[0], 2 ** (24 // exponent)):
        return None
    x: Any = node.args[0]
    result = x
    for _ in range(exponent - 1):
        result = emit("aten.mul.Tensor", result, x)
    return result  # type: ignore[no-any-return]


Rule = Callable[[Emitter, "Node", Bounds], Any]

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("aten.amax.default", "aten.amin.default"), _amax),
    **dict.fromkeys(("aten.max.default", "aten.min.default"), _max_all),
    **dict.fromkeys(("aten.max.dim", "aten.min.dim"), _max_dim),
    **dict.fromkeys(("aten.sum.default", "aten.sum.dim_IntList"), _sum),
    **{f"aten.{op}.{form}": _compare for op in ("eq", "ne", "lt", "le", "gt", "ge") for form in ("Tensor", "Scalar")},
    **{f"aten.where.{form}": _select for form in ("self", "ScalarOther", "ScalarSelf")},
    **{f"aten.masked_fill.{form}": _select for form in ("Scalar", "Tensor")},
    **dict.fromkeys(("aten.clamp.default", "aten.clamp.Tensor", "aten.relu.default"), _clamp),
    **{f"aten.clamp_{end}.{form}": _clamp for end in ("min", "max") for form in ("default", "Tensor")},
    **dict.fromkeys(("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.fmod.Scalar", "aten.fmod.Tensor"), _divide),
    **dict.fromkeys(("aten.constant_pad_nd.default", "aten.pad.default"), _pad),
    **dict.fromkeys(("aten.pow.Tensor_Scalar", "aten.square.default"), _power),
}


@graph_pass(
    fault="OpenVINO's CPU plugin reduces, compares, selects and divides integers in float32, wrong beyond 2**24",
    ops=tuple(_RULES),
)
def exact_integers(program: ExportedProgram) -> ExportedProgram:
    """Those ops of 32-bit and 64-bit integers by ops that the plugin computes in integers, but for small operands."""
    bounds = Bounds(program)
    for node in list(program.graph.nodes):
        rule = _RULES.get(op_name(node)) if node.op == "call_function" else None
        if rule is None or not _concerned(node):
            continue
        emit = Emitter(program, node)
        new = rule(emit, node, bounds)
        if isinstance(new, tuple):
            for user in list(node.users):
                Emitter(program, user).replace(new[user.args[1]])
            program.graph.erase_node(node)
        elif new is not None:
            emit.replace(new)
    program.graph_module.recompile()
    return program


def _concerned(node: Node) -> bool:
    """Whether a call reads integers of 32 or 64 bits, and no floats."""
    import torch

    dtypes = [getattr(n.meta.get("val"), "dtype", None) for n in node.all_input_nodes]
    made = node.meta.get("val")
    made = made[0] if isinstance(made, list | tuple) else made
    whole = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    # a comparison with a float is one of floats in PyTorch too
    numbers = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, float) and "pad" not in op_name(node)]
    return (
        not numbers
        and getattr(made, "dtype", None) in whole
        and all(d in whole for d in dtypes if d is not None)
        and any(d in (torch.int32, torch.int64) for d in dtypes)
    )
