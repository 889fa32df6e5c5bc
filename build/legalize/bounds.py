"""How large the integers of a program can be, as far as its graph tells. Registers nothing.

An input may hold anything; a mask, an index, a position, a cast from 8 bits cannot. What is not known is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

#: the smallest and the largest value.
Interval = tuple[int, int]

_SAME = frozenset(
    """
    view reshape _unsafe_view permute transpose t expand expand_as slice select narrow squeeze unsqueeze clone
    contiguous alias detach flatten unflatten gather index_select index flip roll repeat tile repeat_interleave
    embedding movedim swapaxes split split_with_sizes chunk unbind take diagonal unfold lift_fresh_copy amax amin
    max min sort topk cummax cummin to _to_copy type_as view_as reshape_as aminmax median take_along_dim
    """.split()  # noqa: SIM905
)
_PLACES = frozenset("argmax argmin argsort".split())  # noqa: SIM905
_CREATED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}


def _hull(*parts: Interval | None) -> Interval | None:
    known = [p for p in parts if p is not None]
    return (min(p[0] for p in known), max(p[1] for p in known)) if len(known) == len(parts) and known else None


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _sub(a: Interval, b: Interval) -> Interval:
    return a[0] - b[1], a[1] - b[0]


def _mul(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _abs(a: Interval) -> Interval:
    return (0 if a[0] <= 0 <= a[1] else min(map(abs, a))), max(map(abs, a))


def _larger(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def _smaller(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


_TWO: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "maximum": _larger,
    "minimum": _smaller,
    "rsub": lambda a, b: _sub(b, a),
}
_ONE: dict[str, Callable[[Interval], Interval]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "abs": _abs,
    "sign": lambda _a: (-1, 1),
    "relu": lambda a: (max(a[0], 0), max(a[1], 0)),
}


class Bounds:
    """Intervals of a program's integer tensors."""

    def __init__(self, program: ExportedProgram) -> None:
        self._ranges = program.range_constraints
        self._known: dict[Node, Interval | None] = {}
        changed = {s.target for s in program.graph_signature.output_specs if s.kind.name == "BUFFER_MUTATION"}
        self._constants: Mapping[str, Any] = {
            s.arg.name: program.state_dict.get(s.target, program.constants.get(s.target))
            for s in program.graph_signature.input_specs
            if s.target is not None and s.target not in changed and hasattr(s.arg, "name")
        }

    def of(self, value: Any) -> Interval | None:
        """A node's interval, or a number's."""
        if isinstance(value, bool | int):
            return int(value), int(value)
        if not hasattr(value, "op"):
            return None
        todo = [value]  # an explicit stack: graphs are longer than Python's
        while todo:
            node = todo[-1]
            missing = [n for n in node.all_input_nodes if n not in self._known] if node not in self._known else []
            if missing:
                todo.extend(missing)
                continue
            if node not in self._known:
                self._known[node] = self._clipped(node)
            todo.pop()
        return self._known[value]

    def within(self, value: Any, limit: int) -> bool:
        """Whether the magnitude is known to stay below ``limit``."""
        found = self.of(value)
        return found is not None and max(abs(found[0]), abs(found[1])) < limit

    def size(self, size: Any) -> int | None:
        """A dimension's largest size."""
        if isinstance(size, int):
            return size
        from torch.utils._sympy.value_ranges import bound_sympy

        try:
            return int(bound_sympy(size.node.expr, self._ranges).upper)
        except (AttributeError, TypeError, ValueError, OverflowError):  # no maximum, or no such expression
            return None

    def count(self, node: Node, dims: Any) -> int | None:
        """Elements that a reduction of ``node`` over ``dims`` takes together."""
        from build.legalize.common import dims_of

        x = node.meta["val"]
        sizes = [self.size(x.shape[d]) for d in dims_of(x, dims)] if x.dim() else [1]
        return None if None in sizes else prod(s for s in sizes if s is not None)

    def _clipped(self, node: Node) -> Interval | None:
        """What the op gives, or what the dtype holds where that is less."""
        import torch

        value = node.meta.get("val")
        dtype = getattr(value, "dtype", None)
        if dtype is torch.bool:
            return 0, 1
        if isinstance(value, torch.SymInt):
            high = self.size(value)
            return None if high is None else (-abs(high), abs(high))
        found = self._made(node)
        if dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16):
            info = torch.iinfo(dtype)
            if found is None or found[0] < info.min or found[1] > info.max:
                return int(info.min), int(info.max)
        return found

    def _made(self, node: Node) -> Interval | None:
        import torch

        if node.op == "placeholder":
            tensor = self._constants.get(node.name)
            if isinstance(tensor, torch.Tensor) and not tensor.dtype.is_floating_point and tensor.numel():
                return (int(tensor.min()), int(tensor.max())) if not tensor.is_complex() else None
            return None
        if node.op != "call_function":
            return None
        name, args = op_name(node), node.args
        if name.endswith("getitem"):
            return self._part(node)
        op = name.split(".")[1] if name.startswith("aten.") else ""
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if op in _SAME:
            return self._known.get(args[0]) if hasattr(args[0], "op") else None
        if op in _PLACES:
            return self._positions(args[0], args[1] if len(args) > 1 else None)
        if op in _CREATED:
            return _CREATED[op], _CREATED[op]
        if dtype is None or dtype.is_floating_point:
            return None
        if op in _ONE:
            operand = self.of(args[0])
            return None if operand is None else _ONE[op](operand)
        if op in _TWO and node.kwargs.get("alpha", 1) == 1:
            left, right = self.of(args[0]), self.of(args[1])
            return None if left is None or right is None else _TWO[op](left, right)
        rule = _RULES.get(op)
        return None if rule is None else rule(self, node)

    def _part(self, node: Node) -> Interval | None:
        source, index = node.args
        op = op_name(source).split(".")[1] if hasattr(source, "op") and "." in op_name(source) else ""
        if index == 1 and op in ("max", "min", "sort", "topk", "median", "cummax", "cummin"):
            at = {"topk": 2, "sort": 1}.get(op, 1)
            return self._positions(source.args[0], source.args[at] if len(source.args) > at else -1)
        return self._known.get(source)

    def _positions(self, x: Any, dim: Any) -> Interval | None:
        count = self.count(x, dim if isinstance(dim, int) else None)
        return None if count is None else (0, max(count - 1, 0))

    def _arange(self, node: Node) -> Interval | None:
        ends = [self.of(a) for a in (*node.args, *([0] if len(node.args) == 1 else []))]
        return _hull(*ends[:2])

    def _full(self, node: Node) -> Interval | None:
        return self.of(node.args[1])

    def _scalar_tensor(self, node: Node) -> Interval | None:
        return self.of(node.args[0])

    def _cat(self, node: Node) -> Interval | None:
        parts: Any = node.args[0]
        return _hull(*(self.of(p) for p in parts))

    def _where(self, node: Node) -> Interval | None:
        return _hull(*(self.of(a) for a in node.args[1:3])) if len(node.args) == 3 else None

    def _masked_fill(self, node: Node) -> Interval | None:
        return _hull(self.of(node.args[0]), self.of(node.args[2]))

    def _clamp(self, node: Node) -> Interval | None:
        bounds = [*node.args[1:], None, None][:2]
        low, high = (
            self.of(b if b is not None else node.kwargs.get(k)) for b, k in zip(bounds, ("min", "max"), strict=True)
        )
        own = self.of(node.args[0])
        if own is None:
            return (low[0], high[1]) if low is not None and high is not None and low[0] <= high[1] else None
        own = own if low is None else _larger(own, low)
        return own if high is None else _smaller(own, high)

    def _remainder(self, node: Node) -> Interval | None:
        by = self.of(node.args[1])
        return None if by is None else (min(by[0] + 1, 0), max(by[1] - 1, 0))

    def _fmod(self, node: Node) -> Interval | None:
        by = self.of(node.args[1])
        most = 0 if by is None else max(_abs(by)[1] - 1, 0)
        return None if by is None else (-most, most)

    def _bitwise_and(self, node: Node) -> Interval | None:
        masks = [m for m in map(self.of, node.args) if m is not None and m[0] >= 0]
        return (0, min(m[1] for m in masks)) if masks else None

    def _quotient(self, node: Node) -> Interval | None:
        own = self.of(node.args[0])
        return None if own is None else (-_abs(own)[1], _abs(own)[1])  # a divisor of 1 or more in magnitude

    def _pad(self, node: Node) -> Interval | None:
        return _hull(self.of(node.args[0]), self.of(node.args[2] if len(node.args) > 2 else 0))

    def _one_hot(self, node: Node) -> Interval | None:
        return 0, 1

    def _sum(self, node: Node) -> Interval | None:
        x = node.args[0]
        own, count = self.of(x), self.count(x, node.args[1] if len(node.args) > 1 else None)  # type: ignore[arg-type]
        return None if own is None or count is None else (min(own[0] * count, 0), max(own[1] * count, 0))


_RULES: dict[str, Callable[[Bounds, Node], Interval | None]] = {
    "arange": Bounds._arange,
    "full": Bounds._full,
    "full_like": Bounds._full,
    "scalar_tensor": Bounds._scalar_tensor,
    "cat": Bounds._cat,
    "stack": Bounds._cat,
    "where": Bounds._where,
    "masked_fill": Bounds._masked_fill,
    "clamp": Bounds._clamp,
    "remainder": Bounds._remainder,
    "fmod": Bounds._fmod,
    "bitwise_and": Bounds._bitwise_and,
    "__and__": Bounds._bitwise_and,
    "floor_divide": Bounds._quotient,
    "div": Bounds._quotient,
    "one_hot": Bounds._one_hot,
    "constant_pad_nd": Bounds._pad,
    "sum": Bounds._sum,
    "cumsum": Bounds._sum,
}
