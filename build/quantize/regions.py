"""Which values of a program stay in floating point when some of its nodes are to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from build.errors import InputError
from build.program import op_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

#: Ops that hand values on: a backend fuses them into the op before, or moves elements without changing their scale.
#: Quantising behind one of them would quantise the kept op's own result.
PASSING_ON = frozenset(
    f"aten.{op}"
    for op in """
        relu relu_ hardtanh hardtanh_ clamp clamp_ relu6 leaky_relu leaky_relu_ dropout dropout_ batch_norm
        _native_batch_norm_legit_no_training max_pool1d max_pool2d max_pool2d_with_indices view reshape _unsafe_view
        flatten squeeze unsqueeze permute transpose contiguous clone expand slice select pad constant_pad_nd
        alias detach detach_ to _to_copy upsample_nearest2d
    """.split()  # noqa: SIM905
)


def packet(node: Node) -> str:
    """``aten.relu`` of a node that calls ``aten.relu.default``."""
    return op_name(node).rpartition(".")[0]


def check_names(program: ExportedProgram, keep: Iterable[str]) -> None:
    """Every name is a computing node of the program.

    Raises:
        InputError: one is not; the message names the nearest.
    """
    import difflib

    known = [n.name for n in program.graph.nodes if n.op == "call_function"]
    for name in keep:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise InputError(
                f"--keep-float {name}: the program has no such node",
                remedy=f"Did you mean {', '.join(near)}?" if near else "`nox -s blame` lists the nodes by name.",
            )


def float_values(graph: Graph, keep: Iterable[str]) -> set[str]:
    """Names of the nodes whose values stay float: the kept ones and all that only hand their values on."""
    wanted = set(keep)
    found: set[str] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        passes = packet(node) in PASSING_ON and any(i.name in found for i in node.all_input_nodes)
        if node.name in wanted or passes:
            found.add(node.name)
    return found
