"""How large a call is tried while lowering."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

from targets.trials import largest_trial


class _Wide(torch.nn.Module):
    """One value of ``4 * width`` bytes for each row and step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None].expand(-1, -1, self.width).relu().sum(2)


def _program(width: int) -> ExportedProgram:
    shapes = {"x": {0: Dim("rows", min=1, max=64), 1: Dim("steps", min=1, max=128)}}
    return export(_Wide(width), (torch.ones(3, 5),), dynamic_shapes=shapes)


def _symbols(program: ExportedProgram) -> tuple[str, str]:
    rows, steps = next(n for n in program.graph.nodes if n.op == "placeholder").meta["val"].shape
    return str(rows.node.expr), str(steps.node.expr)


@pytest.mark.parametrize(
    ("width", "sizes"),
    [
        (512, (64, 128)),  # 16 MiB to the byte
        (513, (32, 64)),
        (2**14, (8, 16)),
        (2**23, (1, 1)),  # 32 MiB for a single row and step: less there is not
    ],
)
def test_no_value_of_a_trial_takes_more_than_16_mib(width: int, sizes: tuple[int, int]) -> None:
    program = _program(width)
    rows, steps = _symbols(program)
    found = largest_trial(program, {rows: 1, steps: 1}, {rows: 64, steps: 128})
    assert (found[rows], found[steps]) == sizes


def test_the_lower_bound_is_never_left() -> None:
    program = _program(2**23)
    rows, steps = _symbols(program)
    assert largest_trial(program, {rows: 2, steps: 7}, {rows: 2, steps: 128}) == {rows: 2, steps: 7}
