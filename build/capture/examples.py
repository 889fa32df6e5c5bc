"""The examples within a call, one by one: a call of 64 images holds the same data as 64 calls of one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build.capture.sizes import example_sizes
from models.spec import Call
from targets.contract import DynamicDim, Signature

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example of a call.

    Attributes:
        sha256: of all its inputs together (names, dtypes, shapes, bytes).
        place: as a message names it.
        varies: some input of it holds more than one value: not padding, not silence.
    """

    sha256: str
    place: str
    varies: bool


def examples_of(call: Call, signature: Signature) -> list[Example]:
    """A call's examples, in order; the call itself where it has no batch dimension."""
    dim = _batch(signature)
    count = 1 if dim is None else _count(dim, call, signature)
    if count == 0:
        return []
    parts = []
    for spec in signature.inputs:
        value = call.inputs[spec.name]
        # what is not batched belongs to every example
        split = count if dim is not None and spec.shape and _same(spec.shape[0], dim) else 1
        shape = (value.shape[0] // split, *value.shape[1:]) if split > 1 else tuple(value.shape)
        data = _bytes(value, split)
        varies = (data != data[:, :1]).any(axis=(1, 2))
        parts.append((f"{spec.name} {value.dtype} {shape};".encode(), data, varies))
    found = []
    for row in range(count):
        digest, varied = hashlib.sha256(), False
        for head, data, varies in parts:
            mine = row if len(data) == count else 0
            digest.update(head + data[mine].tobytes())
            varied = varied or bool(varies[mine])
        place = f"'{call.id}'" if count == 1 else f"example {row} of '{call.id}'"
        found.append(Example(sha256=digest.hexdigest(), place=place, varies=varied))
    return found


def _batch(signature: Signature) -> DynamicDim | None:
    """The first axis of an input along which the outputs go too, dynamic in both.

    A fixed one may as well be frames or channels, of which a row is no example.
    """
    first = [s.shape[0] for s in signature.inputs if s.shape]
    symbols = {o.shape[0].symbol for o in signature.outputs if o.shape and isinstance(o.shape[0], DynamicDim)}
    return next((d for d in first if isinstance(d, DynamicDim) and d.symbol in symbols and d.offset == 0), None)


def _count(dim: DynamicDim, call: Call, signature: Signature) -> int:
    return example_sizes(signature, {n: tuple(t.shape) for n, t in call.inputs.items()})[dim.symbol]


def _same(axis: DynamicDim | int, dim: DynamicDim) -> bool:
    return isinstance(axis, DynamicDim) and axis.symbol == dim.symbol and axis.offset == 0


def _bytes(value: torch.Tensor, rows: int) -> Any:
    """A tensor's bytes as an array of (row, element, byte)."""
    import torch

    data = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    return data.reshape(rows, value.numel() // rows, value.element_size())
