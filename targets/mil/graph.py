"""The graph of a saved ML Program, as plain data: what the file says, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DimRange:
    """A dimension that the file leaves open. Inclusive bounds; ``hi`` is None where there is no maximum."""

    lo: int
    hi: int | None

    def holds(self, size: int) -> bool:
        """Whether ``size`` lies inside."""
        return self.lo <= size and (self.hi is None or size <= self.hi)


@dataclass(frozen=True, kw_only=True)
class ValueType:
    """Declared type of a value inside the program.

    Attributes:
        dtype: MIL's element type (``fp16``, ``int32``, ``string``), or ``list`` / ``dictionary``.
        shape: one entry per dimension, None where unknown; None for the whole shape where even the rank is unknown.
        state: whether it is a state (a value that outlives the call) of that type.
    """

    dtype: str
    shape: tuple[int | None, ...] | None
    state: bool = False

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether a value of ``shape`` contradicts nothing that is declared."""
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            w is None or w == g for w, g in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True, kw_only=True)
class ValueInfo:
    """Name, type and shapes of one input, output or state, as the package declares them to an app.

    Attributes:
        dtype: MIL's element type.
        shape: sizes and ranges. Where the file enumerates shapes, the range from the smallest to the largest.
        enumerated: the only shapes allowed, where the file lists them.
        default: the shape that Core ML uses where none is given, or () where the file names none.
    """

    name: str
    dtype: str
    shape: tuple[int | DimRange, ...]
    enumerated: tuple[tuple[int, ...], ...] = ()
    default: tuple[int, ...] = ()

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether an app may pass a value of ``shape``."""
        if self.enumerated:
            return shape in self.enumerated
        return len(shape) == len(self.shape) and all(
            d.holds(s) if isinstance(d, DimRange) else d == s for d, s in zip(self.shape, shape, strict=True)
        )

    def describe(self) -> str:
        """The allowed shapes, in words for a message."""
        if self.enumerated:
            return " or ".join(str(list(s)) for s in self.enumerated)
        parts = [f"{d.lo}..{'' if d.hi is None else d.hi}" if isinstance(d, DimRange) else str(d) for d in self.shape]
        return f"[{', '.join(parts)}]"


@dataclass(frozen=True)
class Ref:
    """An argument that names another value of the program."""

    name: str


@dataclass(frozen=True)
class Literal:
    """A value written in the file: a torch tensor (held as ``dtypes`` says), a string, a list or a dictionary."""

    value: Any
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One result of a node."""

    name: str
    type: ValueType


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation. ``frees``: names whose last use it is, so that their memory can go."""

    op: str
    name: str
    args: Mapping[str, tuple[Ref | Literal, ...]]
    outputs: tuple[Slot, ...]
    blocks: tuple[Block, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """Operations in order. ``constants``: values known at load (weights, decompressed ones too)."""

    inputs: tuple[Slot, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
