"""Which node of a program an op of its artifact came from: names that follow a node through rewriting and export.

A rewrite makes new nodes and a converter makes others; both hand on the stack trace of the node that they replace. So
the name rides there, on a line of its own that no reader of stack traces takes for a frame. Registers nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from build.errors import InputError
from build.quantize.regions import PASSING_ON, check_names, float_values, packet

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PREFIX = "edgeport-node "

#: Ops that a converter merges into the layer before them, weights and all.
_MERGED = frozenset(f"aten.{op}" for op in ("batch_norm", "_native_batch_norm_legit_no_training"))


def name_in(stack_trace: str | None) -> str | None:
    """The name that ``Kept.mark`` wrote into a stack trace; None when there is none."""
    last = (stack_trace or "").rpartition("\n")[2]
    return last.removeprefix(_PREFIX) if last.startswith(_PREFIX) else None


@dataclass(frozen=True, kw_only=True)
class Region:
    """What stays in floating point, by marks that the artifact's ops really carry.

    Attributes:
        ops: arithmetic and weights stay float.
        values: what comes out stays float (those of ``ops`` among them).
    """

    ops: frozenset[str]
    values: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The nodes that a request keeps in floating point, and what must be known of their graph to find them again.

    Attributes:
        names: as the request gives them.
        values: names of all nodes whose value stays float.
        packets: node -> its op without overload.
        sources: node -> the computing nodes that it reads.
        users: node -> the computing nodes that read it.
    """

    names: tuple[str, ...]
    values: frozenset[str]
    packets: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]]
    users: Mapping[str, tuple[str, ...]]

    @staticmethod
    def mark(program: ExportedProgram, names: Iterable[str]) -> Kept:
        """Mark every computing node of ``program`` with its own name, in place. Before any rewrite.

        Raises:
            InputError: one of ``names`` is no computing node of the program.
        """
        wanted = tuple(names)
        check_names(program, wanted)
        computing = [n for n in program.graph.nodes if n.op == "call_function"]
        known = {n.name for n in computing}
        for node in computing:
            node.meta["stack_trace"] = f"{node.meta.get('stack_trace') or ''}\n{_PREFIX}{node.name}"
        return Kept(
            names=wanted,
            values=frozenset(float_values(program.graph, wanted)),
            packets={n.name: packet(n) for n in computing},
            sources={n.name: tuple(i.name for i in n.all_input_nodes if i.name in known) for n in computing},
            users={n.name: tuple(u.name for u in n.users if u.name in known) for n in computing},
        )

    def region(self, present: Collection[str]) -> Region:
        """What stays float, given the marks that the artifact's ops carry.

        A converter merges a batch norm into its layer (then one mark is left for both) and drops what only hands a
        value on (then the value before it is the kept one).

        Raises:
            InputError: a kept node left no trace.
        """
        ops: set[str] = set()
        values = set(self.values)
        for name in self.names:
            found = self._merged(name, present)
            if found is not None:
                ops.add(found)
                values.add(found)
                continue
            before = self._handed_on(name, present)
            if before is None:
                raise InputError(
                    f"--keep-float {name}: the converter left nothing of this {self.packets[name]} to keep",
                    remedy="Keep the layer before it or the one after it instead.",
                )
            values.update(before)
        return Region(ops=frozenset(ops), values=frozenset(values))

    def _merged(self, name: str, present: Collection[str]) -> str | None:
        """``name`` itself where the artifact has it, else the node that it was merged with."""
        if name in present:
            return name
        if self.packets[name] in _MERGED:
            near = [s for s in self.sources[name] if self.users[s] == (name,)]
        else:
            near = [u for u in self.users[name] if self.packets[u] in _MERGED and len(self.users[name]) == 1]
        return next((n for n in near if n in present), None)

    def _handed_on(self, name: str, present: Collection[str]) -> list[str] | None:
        """The nodes whose value a dropped ``name`` hands on; None when it does more than that, or none is left."""
        if self.packets[name] not in PASSING_ON or self.packets[name] in _MERGED:
            return None
        found: list[str] = []
        for source in self.sources[name][:1]:
            inner = [source] if source in present else self._handed_on(source, present)
            if inner is None:
                return None
            found += [*inner, source]
        return found
