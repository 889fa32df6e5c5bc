"""atan2 keeps its meaning in every quadrant, on the axes, and at infinity."""

from __future__ import annotations

import math

import torch

from build.legalize import legalize
from build.program import call


class Angle(torch.nn.Module):
    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(y, x)


def test_atan2_by_quadrant() -> None:
    ends = torch.tensor([0.0, -0.0, 1.5, -2.5, 1e-30, -1e30, math.inf, -math.inf, math.nan])
    y, x = (t.reshape(-1) for t in torch.meshgrid(ends, ends, indexing="ij"))
    program = torch.export.export(Angle(), (y, x))
    rewritten = legalize(program, ["atan2_by_quadrant"])
    assert not any("atan2" in str(n.target) for n in rewritten.graph.nodes)
    (got,) = call(rewritten)([y, x])
    want = torch.atan2(y, x)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)
    settled = ~torch.isnan(want)
    assert torch.equal(torch.signbit(got)[settled], torch.signbit(want)[settled])
