"""How a rewrite is shown to keep the program's meaning: same outputs, dtypes, shapes, names and source lines."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from build.legalize import REGISTRY, legalize
from build.legalize.core import resolve_op
from build.program import input_names, output_names, source_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program that contains the op, and the inputs on which both forms must agree.

    Attributes:
        function: of tensors, or a module.
        inputs: one tuple of tensors per size; the first is the example of the export.
        dynamic: ``dynamic_shapes`` for the export.
        rtol, atol: zero asks for equal bits.
        unchanged: the rewrite must leave this call alone.
    """

    function: Callable[..., Any]
    inputs: tuple[tuple[torch.Tensor, ...], ...]
    dynamic: Any = None
    rtol: float = 1e-5
    atol: float = 1e-6
    unchanged: bool = False


class _Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function


class _One(_Call):
    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class _Two(_Call):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


class _Three(_Call):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return self.function(x, y, z)


class _Four(_Call):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> Any:
        return self.function(x, y, z, w)


def _with_names(case: Case) -> nn.Module:
    """A module whose forward has one named parameter for each input, as users' modules have."""
    if isinstance(case.function, nn.Module):
        return case.function.eval()
    return (_One, _Two, _Three, _Four)[len(case.inputs[0]) - 1](case.function).eval()


def export(case: Case) -> torch.export.ExportedProgram:
    """The case's program, in the form in which a loaded ``.pt2`` arrives."""
    with torch.no_grad():
        return torch.export.export(_with_names(case), case.inputs[0], dynamic_shapes=case.dynamic)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, in order."""
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _calls(program: torch.export.ExportedProgram) -> list[tuple[str, str]]:
    """The ops in order with their keywords; a cast has two names in ATen."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    return [(str(n.target).replace("_to_copy.default", "to.dtype"), str(n.kwargs.get("alpha"))) for n in nodes]


def check(name: str, case: Case) -> None:
    """Apply one rewrite and compare with the program as it was, at every size."""
    program = export(case)
    rewrite = REGISTRY[name]
    targets = {op for op in map(resolve_op, rewrite.ops) if op is not None}
    assert not targets or any(n.target in targets for n in program.graph.nodes), f"{name}: no {rewrite.ops} in the case"
    before = _calls(program)
    eager = program.module()
    want = [tensors(eager(*args)) for args in case.inputs]
    names = (input_names(program), output_names(program))

    legal = legalize(program, [name])

    assert (input_names(legal), output_names(legal)) == names
    if rewrite.decompose is not None:
        assert (_calls(legal) == before) == case.unchanged, (before, _calls(legal))
    for node in legal.graph.nodes:
        made_by_torch = node.op != "call_function" or "sym_size" in str(node.target)
        # What a pass makes of an input alone stands for no line of the user's.
        of_input = rewrite.graph_pass is not None and all(n.op == "placeholder" for n in node.all_input_nodes)
        if not made_by_torch and not of_input:
            assert source_of(node), f"{name} loses the source line of {node}"
    rewritten = legal.module()
    for args, expected in zip(case.inputs, want, strict=True):
        got = tensors(rewritten(*args))
        assert len(got) == len(expected)
        for g, w in zip(got, expected, strict=True):
            torch.testing.assert_close(g, w, rtol=case.rtol, atol=case.atol, equal_nan=True)


@cache
def names_in_tests() -> frozenset[str]:
    """Every string literal in the rewrite tests of this folder: a rewrite that none of them names is untested."""
    found: set[str] = set()
    here = Path(inspect.getfile(check)).parent
    for path in here.glob("test_*.py"):
        constants = (n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant))
        found |= {value for value in constants if isinstance(value, str)}
    return frozenset(found)
