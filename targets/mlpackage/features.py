"""A program's inputs and outputs as Core ML's: element types, ranges of sizes, names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from targets.contract import DynamicDim, Signature, TensorSpec, shape_at

if TYPE_CHECKING:
    from targets.contract import Array

#: program dtype -> the type that carries it across Core ML's interface (a multi-array is fp16, fp32 or int32).
CARRIER: dict[str, str] = {
    "float32": "float32",
    "float16": "float16",
    "int32": "int32",
    **dict.fromkeys(("int64", "int16", "int8", "uint8", "bool"), "int32"),
}

#: Core ML lists at most this many shapes for an input (Core ML Tools guide, "Flexible Input Shapes").
MAX_SHAPES = 128


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What is passed to coremltools, and the facts about it that the package itself does not hold.

    Attributes:
        inputs: one ``ct.TensorType`` per program input.
        outputs: one ``ct.TensorType`` per program output.
        carried: feature name -> ``"int64 as int32"``, where the type differs from the program's.
        warnings: sizes that the package allows and the program does not.
    """

    inputs: list[Any]
    outputs: list[Any]
    carried: Mapping[str, str]
    warnings: tuple[str, ...]


def _enumerable(signature: Signature) -> bool:
    """Whether the sizes have to be, and can be, listed: some dimension has steps, and one input is dynamic."""
    dynamic = [t for t in signature.inputs if any(isinstance(d, DynamicDim) for d in t.shape)]
    if len(dynamic) != 1 or not any(isinstance(d, DynamicDim) and d.scale > 1 for d in dynamic[0].shape):
        return False
    count = 1
    for lo, hi in signature.dynamic_symbols.values():
        count *= MAX_SHAPES + 1 if hi is None else hi - lo + 1
    return count <= MAX_SHAPES


def _listed(spec: TensorSpec, roots: Mapping[str, tuple[int, int | None]]) -> list[list[int]]:
    """Every shape of an input, smallest first."""
    symbols = sorted({d.symbol for d in spec.shape if isinstance(d, DynamicDim)})
    ranges = [range(lo, (lo if hi is None else hi) + 1) for lo, hi in (roots[s] for s in symbols)]
    shapes = []
    for sizes in itertools.product(*ranges):
        at = dict(zip(symbols, sizes, strict=True))
        shapes.append(list(shape_at(spec.shape, at)))
    return shapes


def listed_shapes(signature: Signature, spec: TensorSpec) -> list[list[int]] | None:
    """Every shape of an input, where a package lists them; None where it gives ranges."""
    if not _enumerable(signature) or not any(isinstance(d, DynamicDim) for d in spec.shape):
        return None
    return _listed(spec, signature.dynamic_symbols)


def _shape(spec: TensorSpec, examples: Sequence[int], known: dict[DynamicDim, Any]) -> list[Any]:
    """Sizes and ranges; equal dimensions share one ``RangeDim``, so that the program knows them to be equal."""
    import coremltools as ct

    shape: list[Any] = []
    for size, example in zip(spec.shape, examples, strict=True):
        if isinstance(size, int):
            shape.append(size)
        elif size.lo == size.hi:
            shape.append(size.lo)
        else:
            if size not in known:
                inside = example if size.hi is not None and size.lo <= example <= size.hi else size.lo
                known[size] = ct.RangeDim(lower_bound=size.lo, upper_bound=size.hi, default=inside)
            shape.append(known[size])
    return shape


def interface(signature: Signature, examples: Sequence[Sequence[int]]) -> Interface:
    """Core ML's inputs and outputs for a program's.

    Args:
        examples: shape of each input's example, which becomes Core ML's default shape.
    """
    import coremltools as ct
    import numpy as np

    listed = _enumerable(signature)
    known: dict[DynamicDim, Any] = {}
    inputs: list[Any] = []
    warnings: list[str] = []
    for spec, example in zip(signature.inputs, examples, strict=True):
        dtype = np.dtype(CARRIER[spec.dtype]).type
        shape: Any = _shape(spec, example, known)
        if listed and any(isinstance(d, DynamicDim) for d in spec.shape):
            shapes = _listed(spec, signature.dynamic_symbols)
            default = list(example) if list(example) in shapes else shapes[0]
            shape = ct.EnumeratedShapes(shapes=shapes, default=default) if len(shapes) > 1 else shapes[0]
        elif not spec.shape:
            shape = [1]
        for axis, size in enumerate(spec.shape):
            if isinstance(size, DynamicDim) and size.scale > 1 and not listed:
                warnings.append(
                    f"{spec.name}[{axis}]: Core ML keeps the bounds {size.lo}..{size.hi} of a dimension in steps of "
                    f"{size.scale}, not the steps: the app must pass multiples"
                )
        inputs.append(ct.TensorType(name=spec.name, shape=shape, dtype=dtype))
    outputs = [ct.TensorType(name=t.name, dtype=np.dtype(CARRIER[t.dtype]).type) for t in signature.outputs]
    carried = {
        t.name: f"{t.dtype} as {CARRIER[t.dtype]}"
        for t in (*signature.inputs, *signature.outputs)
        if CARRIER[t.dtype] != t.dtype
    }
    return Interface(inputs=inputs, outputs=outputs, carried=carried, warnings=tuple(warnings))


def to_carrier(spec: TensorSpec, array: Array) -> Array:
    """An input in the type that carries it.

    Raises:
        InputError: an integer does not fit in 32 bits.
    """
    import numpy as np

    from build.errors import InputError

    carrier = np.dtype(CARRIER[spec.dtype])
    if array.dtype == np.int64 and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
        raise InputError(
            f"input '{spec.name}' holds {array.max()} or {array.min()}, beyond Core ML's 32-bit integers",
            remedy="Core ML computes with int32: keep values below 2**31.",
        )
    shaped = array if array.ndim else array.reshape(1)
    return np.ascontiguousarray(shaped.astype(carrier))


def from_carrier(spec: TensorSpec, array: Array) -> Array:
    """An output in the program's dtype; a scalar, which Core ML returns as one element, without dimensions."""
    import numpy as np

    value = np.asarray(array)
    if not spec.shape and value.size == 1:
        value = value.reshape(())
    if spec.dtype == "bool":
        return np.asarray(value != 0)
    return value.astype(np.dtype(spec.dtype))
