"""Whether a NaN or an infinity that differs from PyTorch's is one that the target is known not to pass on.

A target lists the ops that lose NaN or infinity in its runtime (``Lowered.nan_unsafe``). That excuses a difference only
where, in this call, PyTorch really brings such a value to such an op, and only in what is computed from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from build.program import op_name, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from targets.contract import Array, Signature

NAN, INF = "nan", "inf"
#: (what reached an op, the op as the target lists it)
Reach = frozenset[tuple[str, str]]


class Watch:
    """Judges differences in NaN and infinity. The program is loaded, and run, when there is one."""

    def __init__(self, load: Callable[[], ExportedProgram], signature: Signature, unsafe: Sequence[str]) -> None:
        self._load, self._signature, self._unsafe = load, signature, unsafe
        self._program: ExportedProgram | None = None
        #: the ops that explained a difference, as the target lists them
        self.named: list[str] = []

    def excuses(self, inputs: Mapping[str, Array], output: str, got: Array, want: Array) -> bool:
        """Whether every difference in an output of one call is explained by what reached an op that loses it.

        A NaN may also make a finite value NaN, since sorts and maxima put it elsewhere; an infinity never does.
        """
        if not self._unsafe or got.shape != want.shape:
            return False
        if self._program is None:
            self._program = self._load()
        reach = follow(self._program, [inputs[s.name] for s in self._signature.inputs], self._unsafe)
        here = reach[[s.name for s in self._signature.outputs].index(output)]
        made = ~np.isfinite(got) & np.isfinite(want)
        kinds = {kind for kind, _ in here}
        if NAN not in kinds and (INF not in kinds or made.any()):
            return False
        self.named = list(dict.fromkeys([*self.named, *sorted(line for _, line in here)]))
        return True


def follow(program: ExportedProgram, inputs: Sequence[Array], unsafe: Sequence[str]) -> list[Reach]:
    """What each tensor that the program returns inherits, in one call, from ops that lose NaN or infinity.

    Args:
        inputs: in the program's order.
        unsafe: as ``Lowered.nan_unsafe`` lists them.
    """
    import torch

    module = program.module()
    marked = _marked(list(module.graph.nodes), unsafe)
    taint: dict[Node, Reach] = {}

    class Follow(torch.fx.Interpreter):
        def run_node(self, n: Node) -> Any:
            inherited = Reach().union(*(taint.get(i, frozenset()) for i in n.all_input_nodes))
            if n in marked:
                held = _held([self.env[i] for i in n.all_input_nodes])
                inherited |= {(kind, line) for kind in held for line in marked[n]}
            taint[n] = inherited
            return super().run_node(n)

    with torch.no_grad():
        values = Follow(module, garbage_collect_values=False).run(
            *(torch.from_numpy(np.array(x)) for x in inputs), enable_io_processing=False
        )
    (out,) = [n for n in module.graph.nodes if n.op == "output"]
    returned = torch.utils._pytree.tree_leaves(out.args[0])
    flat = torch.utils._pytree.tree_leaves(values)
    return [taint[n] for n, v in zip(returned, flat, strict=True) if isinstance(v, torch.Tensor)]


def _marked(nodes: Sequence[Node], unsafe: Sequence[str]) -> dict[Node, list[str]]:
    """The nodes that the list means: of that name on that line. A backend's own op is any op of its line."""
    found: dict[Node, list[str]] = {}
    calls = [n for n in nodes if n.op == "call_function"]
    for line in unsafe:
        name, _, source = line.partition(" at ")
        here = [n for n in calls if (source_of(n) or "").startswith(source)] if source else calls
        for node in [n for n in here if op_name(n) == name] or here:
            found.setdefault(node, []).append(line)
    return found


def _held(values: Sequence[Any]) -> list[str]:
    import torch

    floats = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
    tests = {NAN: torch.isnan, INF: torch.isinf}
    return [kind for kind, test in tests.items() if any(bool(test(v).any()) for v in floats)]
