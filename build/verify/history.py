"""What an artifact answers must not depend on what it was asked before.

Runtimes keep memory and packed operands from call to call. A float artifact is held to PyTorch at every size on one
loaded copy, so a stale one shows; a quantised artifact's made-up calls are held to nothing, so it is compared with a
copy that was never asked anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from build.errors import EdgeportError
from build.record import CallRecord, ProgramRecord
from build.verify.check import reference_calls
from build.verify.compare import Tolerance, difference
from targets.contract import Runner

if TYPE_CHECKING:
    from targets.contract import Array

#: Two runs on one input: rounding may send a value to the next of 255 steps; a stale operand is far off.
_SAME = Tolerance(atol=1e-6, rtol=0.0, scale=2e-2)


def history_problems(load: Callable[[], Runner], folder: Path, record: ProgramRecord) -> list[str]:
    """Run the smallest call, the largest, those with one dynamic size small and another large, the smallest again.

    Args:
        load: makes a runner that ran nothing yet.
        folder: the captured program's, with its reference data.

    Returns:
        One line for each call whose outputs are not those of a runner of its own; nothing for a program whose sizes
        are fixed.
    """
    order = _chosen(record)
    if not order:
        return []
    wanted = {c.id for c in order}
    inputs = {item.id: given for item, given, _ in reference_calls(folder, record) if item.id in wanted}
    used = load()
    first = order[0]
    alone = {first.id: _run(used, inputs[first.id])}
    problems = []
    for item in (*order[1:], first):
        got = _run(used, inputs[item.id])
        if item.id not in alone:
            alone[item.id] = _run(load(), inputs[item.id])
        problem = _problem(got, alone[item.id])
        if problem:
            sizes = ", ".join(f"{record.symbols.get(s, s)}={n}" for s, n in item.sizes.items())
            problems.append(f"call '{item.id}' at {sizes} depends on the calls before: {problem}")
    return problems


def _chosen(record: ProgramRecord) -> list[CallRecord]:
    """The smallest call, the largest, and the mixed ones; empty without dynamic sizes."""
    sized = [c for c in record.calls if c.sizes and c.kind != "edge"]
    if len({tuple(sorted(c.sizes.items())) for c in sized}) < 2:
        return []
    by_size = sorted(sized, key=lambda c: (sum(c.sizes.values()), c.id))
    return [by_size[0], by_size[-1], *(c for c in sized if c.kind == "mixed" and c not in (by_size[0], by_size[-1]))]


def _run(runner: Runner, inputs: dict[str, Array]) -> dict[str, Array] | str:
    """The outputs, copied; what went wrong where nothing came."""
    try:
        return {name: value.copy() for name, value in runner.run(inputs).items()}
    except EdgeportError as error:
        return error.message
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


def _problem(got: dict[str, Array] | str, alone: dict[str, Array] | str) -> str:
    """What differs; a call that fails alike is the comparison with PyTorch's to report."""
    if isinstance(got, str):
        return "" if isinstance(alone, str) else f"after them, it fails: {got}"
    if isinstance(alone, str):
        return f"without them, it fails: {alone}"
    for name, want in alone.items():
        found = difference(name, got[name], want, _SAME)
        if not found.ok:
            return f"output '{name}' is off by {found.max_abs:.3g} from what it is in a fresh runtime" + (
                f", and {found.nonfinite} of its NaN or infinities differ" if found.nonfinite else ""
            )
    return ""
