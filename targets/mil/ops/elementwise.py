"""Element-wise operations.

What the documentation leaves open, and what was chosen:

- ``round`` takes halves to the even neighbour (the documentation only says that 0.5 becomes 0).
- ``mod`` has the sign of the divisor and ``floor_div`` rounds towards minus infinity, on integers too (Python's rule,
  which coremltools' own constant folding follows). ``real_div`` of integers truncates towards zero.
- ``maximum``, ``minimum`` and ``clip`` pass NaN on.
- ``cast`` from a float to an integer truncates; values beyond the integer's range become its nearest bound and NaN
  becomes 0, as Arm processors convert. Casts between integers wrap.
- ``log``, ``inverse`` and ``rsqrt`` add their epsilon to x in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import INTEGER_RANGES, torch_dtype
from ..registry import OPERATIONS, Args, operation

_UNARY = (
    *("abs", "acos", "asin", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "exp2", "floor", "logical_not"),
    *("round", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
)

_BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "maximum": "maximum",
    "minimum": "minimum",
    "mod": "remainder",
    "pow": "pow",
    "equal": "eq",
    "not_equal": "ne",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}


def _unary(torch_name: str) -> Callable[[Args], Any]:
    def compute(args: Args) -> Any:
        import torch

        return getattr(torch, torch_name)(args["x"])

    return compute


def _binary(torch_name: str) -> Callable[[Args], Any]:
    def compute(args: Args) -> Any:
        import torch

        return getattr(torch, torch_name)(args["x"], args["y"])

    return compute


for _name in _UNARY:
    OPERATIONS[_name] = _unary(_name)
for _name, _torch_name in _BINARY.items():
    OPERATIONS[_name] = _binary(_torch_name)


@operation("identity")
def _identity(args: Args) -> Any:
    return args["x"]


@operation("floor_div")
def _floor_div(args: Args) -> Any:
    import torch

    return torch.div(args["x"], args["y"], rounding_mode="floor")


@operation("real_div")
def _real_div(args: Args) -> Any:
    import torch

    x, y = args["x"], args["y"]
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


@operation("log")
def _log(args: Args) -> Any:
    import torch

    return torch.log(args["x"] + args.number("epsilon", 1e-45))


@operation("inverse")
def _inverse(args: Args) -> Any:
    return 1.0 / (args["x"] + args.number("epsilon", 1e-4))


@operation("rsqrt")
def _rsqrt(args: Args) -> Any:
    import torch

    return torch.rsqrt(args["x"] + args.number("epsilon", 1e-12))


@operation("clip")
def _clip(args: Args) -> Any:
    return args["x"].clamp(args.number("alpha"), args.number("beta"))


@operation("threshold")
def _threshold(args: Args) -> Any:
    return args["x"].clamp(min=args.number("alpha"))


def to_integer(x: Any, dtype: str) -> Any:
    """Float -> integer of MIL type ``dtype``: truncated, saturated, NaN to 0 (by way of int64)."""
    import torch

    lo, hi = INTEGER_RANGES[dtype]
    whole = torch.nan_to_num(x.double(), nan=0.0, posinf=float(hi), neginf=float(lo)).trunc().clamp(lo, hi)
    return whole.to(torch.int64).to(torch_dtype(dtype))


@operation("cast")
def _cast(args: Args) -> Any:
    x, dtype = args["x"], args.text("dtype")
    if dtype == "bool":
        return x != 0
    if dtype in INTEGER_RANGES and x.is_floating_point():
        return to_integer(x, dtype)
    if dtype == "uint16":  # held in int32, so the wrap is ours to do
        return x.to(torch_dtype("int32")) & 0xFFFF
    return x.to(torch_dtype(dtype))


@operation("select")
def _select(args: Args) -> Any:
    import torch

    return torch.where(args["cond"].bool(), args["a"], args["b"])
