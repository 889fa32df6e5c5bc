"""Constants whose shape is a size: made at run time from a smaller, fixed constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from targets.tflite.expressions import evaluate
from targets.tflite.flatbuffer import dtype_name

if TYPE_CHECKING:
    from targets.tflite.expressions import Fitter
    from targets.tflite.shape_ops import ShapeBuilder

#: Highest rank that the runtime's SLICE kernel takes.
_MAX_SLICE_RANK = 5
#: Elements of the largest ramp that is stored as a table.
_MAX_RAMP = 1 << 20


def array(data: bytes, shape: Sequence[int], tensor_type: int) -> Any:
    """A constant's bytes as an array."""
    import numpy as np

    return np.frombuffer(data, dtype_name(tensor_type)).reshape(shape)


def build(
    builder: ShapeBuilder,
    fitter: Fitter,
    arrays: Sequence[Any],
    exprs: Sequence[Any],
    tensor_type: int,
    *,
    top: Any = None,
    weights: Sequence[Any] = (),
) -> int | None:
    """A tensor that equals ``arrays`` at every point, and follows the same rule at all other sizes.

    Args:
        builder: emits operators.
        fitter: finds expressions for numbers seen at the points.
        arrays: the constant at each point.
        exprs: its shape as expressions.
        tensor_type: schema dtype.
        top: the constant at the upper bound of every symbol, when known.
        weights: the program's weights: a table may be a part of one (position embeddings).

    Returns:
        The tensor, or None when no rule fits.
    """
    repeated = [a for a in range(arrays[0].ndim) if not isinstance(exprs[a], int) and _repeats(arrays, top, a)]
    small = [_first(a, repeated) for a in arrays]
    small_top = None if top is None else _first(top, repeated)
    small_exprs = [1 if a in repeated else e for a, e in enumerate(exprs)]
    if small_top is None and fitter.largest is not None:
        largest = [evaluate(e, fitter.largest) for e in small_exprs]
        small_top = _continued(small, largest)
        if small_top is None:
            small_top = _part_of_weight(small, largest, weights)
    core = _core(builder, small, small_exprs, small_top, tensor_type)
    if core is None or not repeated:
        return core
    shape = builder.vector(list(exprs), [len(exprs)])
    signature = open_shape(exprs)
    static = [max(d, 1) for d in signature]
    return builder.op(
        "BROADCAST_TO", [core, shape], builder.tensor(static, tensor_type, signature=signature), "BroadcastToOptions"
    )


def open_shape(exprs: Sequence[Any]) -> list[int]:
    """A shape signature: -1 for each size that is an expression."""
    return [e if isinstance(e, int) else -1 for e in exprs]


def _repeats(arrays: Sequence[Any], top: Any, axis: int) -> bool:
    return all((a == a.take([0], axis)).all() for a in (*arrays, *([] if top is None else [top])))


def _first(value: Any, axes: Sequence[int]) -> Any:
    for axis in axes:
        value = value.take([0], axis)
    return value


def _core(builder: ShapeBuilder, arrays: Sequence[Any], exprs: Sequence[Any], top: Any, tensor_type: int) -> int | None:
    import numpy as np

    if all(isinstance(e, int) for e in exprs):
        if all(np.array_equal(a, arrays[0], equal_nan=a.dtype.kind == "f") for a in arrays[1:]):
            return builder.raw_constant(np.ascontiguousarray(arrays[0]).tobytes(), arrays[0].shape, tensor_type)
        return None
    return _slice(builder, arrays, exprs, top, tensor_type)


def _part_of_weight(arrays: Sequence[Any], shape: Sequence[int], weights: Sequence[Any]) -> Any:
    """The table at the largest size when it is the leading part of a weight, axes of size 1 aside."""
    import numpy as np

    plain = [n for n in shape if n != 1]
    for weight in weights:
        bare = np.squeeze(weight)
        if bare.dtype != arrays[0].dtype or bare.ndim != len(plain):
            continue
        if any(have < want for have, want in zip(bare.shape, plain, strict=True)):
            continue
        whole = bare[tuple(slice(0, n) for n in plain)].reshape(shape)
        if all(np.array_equal(whole[tuple(slice(0, n) for n in a.shape)], a) for a in arrays):
            return whole
    return None


def _continued(arrays: Sequence[Any], shape: Sequence[int]) -> Any:
    """The table at the largest size when it is a plain ramp (``arange``): its values are linear in the indices."""
    import numpy as np

    if arrays[0].dtype.kind not in "iuf" or math.prod(shape) > _MAX_RAMP:
        return None
    origin = arrays[0].reshape(-1)[0]
    largest = max(arrays, key=lambda a: a.size)
    steps = []
    for axis in range(largest.ndim):
        first = tuple(1 if a == axis else 0 for a in range(largest.ndim))
        steps.append(largest[first] - origin if largest.shape[axis] > 1 else 0)

    def ramp(sizes: Sequence[int]) -> Any:
        grid = np.indices(sizes, dtype=np.int64)
        total = sum((grid[a] * step for a, step in enumerate(steps)), np.zeros(sizes, np.int64))
        return (origin + total).astype(arrays[0].dtype)

    if not all(np.array_equal(ramp(a.shape), a) for a in arrays):
        return None
    return ramp(shape)


def _slice(
    builder: ShapeBuilder, arrays: Sequence[Any], exprs: Sequence[Any], top: Any, tensor_type: int
) -> int | None:
    """A corner of the table at the largest size: position tables, causal masks, ``arange``."""
    import numpy as np

    if top is None or top.ndim > _MAX_SLICE_RANK:
        return None
    open_axes = [a for a, e in enumerate(exprs) if not isinstance(e, int)]
    for ends in product((False, True), repeat=len(open_axes)):
        from_end = {a for a, end in zip(open_axes, ends, strict=True) if end}

        def corner(like: Any, from_end: set[int] = from_end) -> Any:
            where = tuple(
                slice(n - m, n) if axis in from_end else slice(0, m)
                for axis, (n, m) in enumerate(zip(top.shape, like.shape, strict=True))
            )
            return top[where]

        if all(np.array_equal(corner(a), a, equal_nan=a.dtype.kind == "f") for a in arrays):
            table = builder.raw_constant(np.ascontiguousarray(top).tobytes(), top.shape, tensor_type)
            begin = [top.shape[a] - exprs[a] if a in from_end else 0 for a in range(top.ndim)]
            signature = open_shape(exprs)
            out = builder.tensor([max(d, 1) for d in signature], tensor_type, signature=signature)
            inputs = [table, builder.vector(begin, [top.ndim]), builder.vector(list(exprs), [top.ndim])]
            return builder.op("SLICE", inputs, out, "SliceOptions")
    return None
