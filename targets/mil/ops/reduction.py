"""Reductions.

Left open by the documentation: which index ``reduce_argmax`` gives among equal values (here the first), and how the
mean of integers is rounded (here towards zero, as coremltools' constant folding does). Integer sums wrap at 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import torch_dtype
from ..registry import OPERATIONS, Args, axis_of


def _sum(x: Any, axes: list[int], keep: bool) -> Any:
    return x.sum(axes, keep)


def _mean(x: Any, axes: list[int], keep: bool) -> Any:
    return x.mean(axes, keep) if x.is_floating_point() else x.double().mean(axes, keep).trunc()


def _product(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in sorted(axes, reverse=True):  # from the back, so that earlier axes keep their number
        x = x.prod(axis, keep)
    return x


def _log_sum_exp(x: Any, axes: list[int], keep: bool) -> Any:
    return x.logsumexp(axes, keep) if x.is_floating_point() else x.double().logsumexp(axes, keep).trunc()


def _root(x: Any) -> Any:
    return x.sqrt() if x.is_floating_point() else x.double().sqrt().trunc()


def _log(x: Any) -> Any:
    return x.log() if x.is_floating_point() else x.double().log().trunc()


_REDUCTIONS: dict[str, Callable[[Any, list[int], bool], Any]] = {
    "reduce_sum": _sum,
    "reduce_mean": _mean,
    "reduce_max": lambda x, axes, keep: x.amax(axes, keep),
    "reduce_min": lambda x, axes, keep: x.amin(axes, keep),
    "reduce_prod": _product,
    "reduce_l1_norm": lambda x, axes, keep: x.abs().sum(axes, keep),
    "reduce_l2_norm": lambda x, axes, keep: _root((x * x).sum(axes, keep)),
    "reduce_sum_square": lambda x, axes, keep: (x * x).sum(axes, keep),
    "reduce_log_sum": lambda x, axes, keep: _log(x.sum(axes, keep)),
    "reduce_log_sum_exp": _log_sum_exp,
}


def _reduction(compute: Callable[[Any, list[int], bool], Any]) -> Callable[[Args], Any]:
    def run(args: Args) -> Any:
        x = args["x"]
        axes = args.integers("axes", range(x.dim()))
        if not axes and x.dim():
            raise args.error("an empty list of axes")
        if any(not -x.dim() <= a < x.dim() for a in axes):
            raise args.error(f"axes {axes} of a tensor of rank {x.dim()}")
        if not axes:
            return compute(x.reshape(1), [0], False).to(x.dtype)
        return compute(x, [a % x.dim() for a in axes], args.flag("keep_dims", False)).to(x.dtype)

    return run


for _name, _compute in _REDUCTIONS.items():
    OPERATIONS[_name] = _reduction(_compute)


def _arg(name: str) -> Callable[[Args], Any]:
    def run(args: Args) -> Any:
        x = args["x"]
        axis = axis_of(args, "axis", x.dim(), -1)
        return getattr(x, name)(axis, args.flag("keep_dims", False)).to(torch_dtype(args.dtypes[0]))

    return run


OPERATIONS["reduce_argmax"] = _arg("argmax")
OPERATIONS["reduce_argmin"] = _arg("argmin")
