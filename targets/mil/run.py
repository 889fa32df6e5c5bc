"""Evaluates a loaded program, operation by operation, with torch on the CPU.

fp16 operations are computed in float32 and their results rounded to fp16 once. That is kinder than hardware, which may
also round inside an operation or flush the smallest numbers to zero; what comes out here is the value that a faithful
runtime approximates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from build.errors import InputError, VerificationError

from .dtypes import element_type, to_numpy, to_torch, torch_dtype
from .graph import Block, Literal, Node, Slot, ValueInfo
from .program import Program
from .registry import OPERATIONS, Args

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

#: operations that only move values: what they give is already rounded.
_MOVES = frozenset(
    {
        *("concat", "expand_dims", "flatten2d", "gather", "gather_along_axis", "gather_nd", "identity", "max_pool"),
        *("maximum", "minimum", "pixel_shuffle", "read_state", "relu", "reshape", "reverse", "select"),
        *("slice_by_index", "slice_by_size", "split", "squeeze", "stack", "tile", "transpose"),
    }
)

#: a loop that runs longer than this many rounds is taken for one that never ends.
_MAX_ROUNDS = 1_000_000


class _State:
    """A value that outlives the call."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _checked(op: str, slot: Slot, value: Any) -> Any:
    """``value`` rounded to its declared type.

    Raises:
        VerificationError: its shape or element type contradicts what the program declares.
    """
    import torch

    kind = slot.type
    if not isinstance(value, torch.Tensor) or kind.dtype in ("list", "dictionary", "string"):
        return value
    if not kind.allows(tuple(value.shape)):
        raise VerificationError(
            f"{op} '{slot.name}': the program declares {kind} but the value is {list(value.shape)}", op=op
        )
    if value.dtype != torch_dtype(kind.dtype):
        raise VerificationError(
            f"{op} '{slot.name}': the program declares {kind} but the value is {value.dtype}", op=op
        )
    return value.half().float() if kind.dtype == "fp16" and op not in _MOVES else value


def _arguments(node: Node, values: Mapping[str, Any], version: int) -> Args:
    given: dict[str, list[Any]] = {}
    for key, parts in node.args.items():
        given[key] = [p.value if isinstance(p, Literal) else values[p.name] for p in parts]
    return Args(
        op=node.op,
        name=node.name,
        version=version,
        values=given,
        dtypes=tuple(s.type.dtype for s in node.outputs),
    )


def _results(node: Node, found: Any) -> list[Any]:
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(results) != len(node.outputs):
        raise VerificationError(
            f"{node.op} '{node.name}' gives {len(results)} values where the program declares {len(node.outputs)}",
            op=node.op,
        )
    return [_checked(node.op, slot, r) for slot, r in zip(node.outputs, results, strict=True)]


def compute(node: Node, values: Mapping[str, Any], version: int) -> list[Any]:
    """The results of one plain operation.

    Raises:
        VerificationError: the operation is unknown, or cannot be computed on these values.
    """
    operation = OPERATIONS.get(node.op)
    if operation is None:
        raise VerificationError(
            f"the evaluator does not know the operation {node.op} ('{node.name}')",
            op=node.op,
            remedy="The package can only be verified on a Mac.",
        )
    try:
        found = operation(_arguments(node, values, version))
    except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError) as err:
        line = str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
        raise VerificationError(f"{node.op} '{node.name}' cannot be computed: {line}", op=node.op) from err
    return _results(node, found)


class _Run:
    """One call of a program."""

    def __init__(self, program: Program) -> None:
        self._version = program.opset_version

    def block(self, block: Block, outer: Mapping[str, Any], inputs: list[Any]) -> list[Any]:
        """The outputs of a block that sees ``outer``'s values and gets ``inputs``."""
        values = {**outer, **block.constants}
        for slot, value in zip(block.inputs, inputs, strict=True):
            values[slot.name] = value if isinstance(value, _State) else _checked("input", slot, value)
        for node in block.nodes:
            values.update(zip((s.name for s in node.outputs), self._node(node, values), strict=True))
            for name in node.frees:
                values.pop(name, None)
        return [values[name] for name in block.outputs]

    def _node(self, node: Node, values: Mapping[str, Any]) -> list[Any]:
        if node.op == "cond":
            args = _arguments(node, values, self._version)
            return _results(node, self.block(node.blocks[0 if args.flag("pred", False) else 1], values, []))
        if node.op == "while_loop":
            return self._loop(node, values)
        if node.op == "read_state":
            return _results(node, _arguments(node, values, self._version)["input"].value)
        if node.op == "write_state":
            args = _arguments(node, values, self._version)
            args["input"].value = args["data"]
            return []
        return compute(node, values, self._version)

    def _loop(self, node: Node, values: Mapping[str, Any]) -> list[Any]:
        carried = _arguments(node, values, self._version).many("loop_vars")
        condition, body = node.blocks
        for _ in range(_MAX_ROUNDS):
            if not bool(self.block(condition, values, carried)[0]):
                return _results(node, carried)
            carried = self.block(body, values, carried)
        raise VerificationError(f"while_loop '{node.name}' did not end in {_MAX_ROUNDS} rounds", op="while_loop")


def _input(info: ValueInfo, array: Any) -> Any:
    array = np.asarray(array)
    wanted = element_type(info.dtype).numpy
    if array.dtype != np.dtype(wanted):
        raise InputError(f"input {info.name} is {array.dtype}; the package declares {wanted}")
    if not info.allows(tuple(array.shape)):
        raise InputError(
            f"input {info.name} has shape {list(array.shape)}, outside the declared {info.describe()}",
            remedy="Pass a shape inside the range, or convert with a wider one.",
        )
    return to_torch(array, info.dtype)


def make_state(program: Program) -> dict[str, Array]:
    """Fresh states, all zero (as Core ML makes them), for ``evaluate`` to read and update."""
    return {
        s.name: np.zeros([d for d in s.shape if isinstance(d, int)], element_type(s.dtype).numpy)
        for s in program.states
    }


def evaluate(program: Program, inputs: Mapping[str, Array], state: dict[str, Array] | None = None) -> dict[str, Array]:
    """Runs the program's main function once.

    Args:
        program: from ``load``.
        inputs: arrays by name, with exactly the declared dtypes (fp32 is float32, int32 is int32).
        state: from ``make_state``; its arrays are replaced by the states after the call. Without it, a program with
            states starts from zeros.

    Returns:
        outputs by name, in the package's order.

    Raises:
        InputError: an input is missing, unknown, of another dtype, or outside the declared shapes.
        VerificationError: an operation is unknown or cannot be computed, or a value contradicts its declared type.
    """
    import torch

    names = {i.name for i in program.inputs}
    if names != set(inputs):
        raise InputError(f"the package takes inputs {sorted(names)}, not {sorted(inputs)}")
    feeds: dict[str, Any] = {i.name: _input(i, inputs[i.name]) for i in program.inputs}
    kept = make_state(program) if state is None else state
    for info in program.states:
        feeds[info.name] = _State(_input(info, kept[info.name]))
    with torch.inference_mode():
        results = _Run(program).block(program.main, {}, [feeds[s.name] for s in program.main.inputs])
    by_name = dict(zip(program.main.outputs, results, strict=True))
    for info in program.states:
        kept[info.name] = to_numpy(feeds[info.name].value, info.dtype)
    return {o.name: to_numpy(by_name[o.name], o.dtype) for o in program.outputs}
