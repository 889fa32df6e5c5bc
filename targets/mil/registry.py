"""The table of operations the evaluator knows, and the typed view of arguments that each receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from build.errors import VerificationError

#: Core ML specification versions, by the iOS release that introduced them.
IOS15, IOS16, IOS17, IOS18 = 6, 7, 8, 9


@dataclass(frozen=True, kw_only=True)
class Args:
    """Arguments of one operation, by MIL's own parameter names.

    fp16 values arrive as float32 (see ``dtypes``), so an operation never computes in half precision; the evaluator
    rounds its result once.

    Attributes:
        op, name: the operation and its first result, for messages.
        version: the package's specification version: some operations changed their meaning.
        values: torch tensors, strings or lists.
        dtypes: declared MIL types of the results.
    """

    op: str
    name: str
    version: int
    values: Mapping[str, Sequence[Any]]
    dtypes: tuple[str, ...]

    def has(self, key: str) -> bool:
        """Whether the program gives this argument."""
        return bool(self.values.get(key))

    def many(self, key: str) -> list[Any]:
        """A tuple-valued argument."""
        return list(self.values.get(key, ()))

    def get(self, key: str) -> Any:
        """An optional tensor, or None."""
        found = self.values.get(key)
        return found[0] if found else None

    def __getitem__(self, key: str) -> Any:
        found = self.values.get(key)
        if not found:
            raise self.error(f"the program gives no {key}")
        return found[0]

    def integers(self, key: str, default: Sequence[int] | None = None) -> list[int]:
        """A tensor of integers as a list."""
        if not self.has(key):
            if default is None:
                raise self.error(f"the program gives no {key}")
            return list(default)
        return [int(v) for v in self[key].reshape(-1).tolist()]

    def flags(self, key: str, count: int) -> list[bool]:
        """A mask; all False where the program gives none."""
        return [bool(v) for v in self[key].reshape(-1).tolist()] if self.has(key) else [False] * count

    def integer(self, key: str, default: int | None = None) -> int:
        """A scalar integer."""
        if default is not None and not self.has(key):
            return default
        return int(self[key].reshape(-1)[0])

    def number(self, key: str, default: float | None = None) -> float:
        """A scalar number."""
        if default is not None and not self.has(key):
            return default
        return float(self[key].reshape(-1)[0])

    def flag(self, key: str, default: bool) -> bool:
        """A scalar flag."""
        return bool(self[key].reshape(-1)[0]) if self.has(key) else default

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        if default is not None and not self.has(key):
            return default
        return str(self[key])

    def error(self, message: str) -> VerificationError:
        """An error that names this operation."""
        return VerificationError(f"{self.op} '{self.name}': {message}", op=self.op)


Operation = Callable[[Args], Any]

OPERATIONS: dict[str, Operation] = {}


def operation(*names: str) -> Callable[[Operation], Operation]:
    """Registers a function as the meaning of the named operations."""

    def register(function: Operation) -> Operation:
        for name in names:
            OPERATIONS[name] = function
        return function

    return register


def axis_of(args: Args, key: str, rank: int, default: int | None = None) -> int:
    """An axis argument as a number from 0 up.

    Raises:
        VerificationError: it lies outside the tensor's rank.
    """
    axis = args.integer(key, default)
    if not -rank <= axis < rank:
        raise args.error(f"{key} {axis} of a tensor of rank {rank}")
    return axis % rank
