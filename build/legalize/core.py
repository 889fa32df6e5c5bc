"""How a rewrite is written and applied.

A rewrite keeps the program's meaning and makes one converter accept it, or keeps that converter from being
quietly wrong. It is one small function in a module of this folder, registered by decorator under its own name,
and it says which converter fault it answers. A target lists the names it needs (``REWRITES``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build.errors import EdgeportError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

GraphPass = Callable[["ExportedProgram"], "ExportedProgram"]
Decomposition = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """One meaning-preserving rewrite.

    Attributes:
        name: what targets list in ``REWRITES``.
        fault: the converter fault that it answers, one sentence.
        ops: op names it may rewrite (``aten.gelu.default``); empty means it looks at the whole graph.
        decompose: replaces one call of an op; returns NotImplemented to leave that call alone.
        graph_pass: rewrites the whole program.
    """

    name: str
    fault: str
    ops: tuple[str, ...] = ()
    decompose: Decomposition | None = None
    graph_pass: GraphPass | None = None


REGISTRY: dict[str, Rewrite] = {}


def _register(rewrite: Rewrite) -> None:
    if rewrite.name in REGISTRY:
        raise EdgeportError(f"two rewrites are named '{rewrite.name}'")
    REGISTRY[rewrite.name] = rewrite


def decomposition(*ops: str, fault: str, name: str | None = None) -> Callable[[Decomposition], Decomposition]:
    """Register a function with an op's own arguments as its replacement. ``ops``: ``"aten.gelu.default"``, …"""

    def register(function: Decomposition) -> Decomposition:
        _register(Rewrite(name=name or function.__name__, fault=fault, ops=ops, decompose=function))
        return function

    return register


def once() -> Callable[[Decomposition], Decomposition]:
    """A decorator for rewrites that call their own op: that call is left as it is, by all that share the decorator."""
    running: ContextVar[bool] = ContextVar("running", default=False)

    def decorate(function: Decomposition) -> Decomposition:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if running.get():
                return NotImplemented
            token = running.set(True)
            try:
                return function(*args, **kwargs)
            finally:
                running.reset(token)

        return guarded

    return decorate


def graph_pass(*, fault: str, ops: Sequence[str] = (), name: str | None = None) -> Callable[[GraphPass], GraphPass]:
    """Register a function from program to program (it may change the program in place and return it)."""

    def register(function: GraphPass) -> GraphPass:
        _register(Rewrite(name=name or function.__name__, fault=fault, ops=tuple(ops), graph_pass=function))
        return function

    return register


def resolve_op(name: str) -> Any:
    """``"aten.gelu.default"`` -> the OpOverload; None when this torch has no such op."""
    import torch

    namespace, packet, overload = name.split(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload, None) if found is not None else None


def legalize(program: ExportedProgram, rewrites: Sequence[str]) -> ExportedProgram:
    """Apply rewrites in order; neighbouring decompositions run as one pass over the graph.

    Several of them may name the same op: the first that does not return NotImplemented rewrites the call.

    Raises:
        EdgeportError: an unknown rewrite name.
    """
    pending: dict[Any, list[Decomposition]] = {}
    for name in rewrites:
        rewrite = REGISTRY.get(name)
        if rewrite is None:
            raise EdgeportError(f"no rewrite is named '{name}'", remedy="See build/legalize/.")
        if rewrite.decompose is not None:
            for op in map(resolve_op, rewrite.ops):
                if op is not None:
                    pending.setdefault(op, []).append(rewrite.decompose)
            continue
        program = _decompose(program, pending)
        pending = {}
        if rewrite.graph_pass is not None:
            program = rewrite.graph_pass(program)
            program.graph.lint()
            program.graph_module.recompile()
    return _decompose(program, pending)


def _first_of(functions: Sequence[Decomposition]) -> Decomposition:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        for function in functions:
            result = function(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return NotImplemented

    return decompose


def _decompose(program: ExportedProgram, table: dict[Any, list[Decomposition]]) -> ExportedProgram:
    present = {n.target for n in program.graph.nodes}
    # A decomposition may itself produce another op of the table, so the whole table goes in when any op is present.
    if not present & set(table):
        return program
    return program.run_decompositions({op: _first_of(functions) for op, functions in table.items()})
