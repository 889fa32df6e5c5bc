"""LSTM with a projection of its hidden state, written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _direction(
    steps: Sequence[Tensor], hidden: Tensor, cell: Tensor, weights: Sequence[Tensor], has_biases: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    """One layer in one direction: the projected output of each step, and the last hidden and cell states.

    Gate order i, f, g, o and the projection ``h = (o * tanh(c)) @ w_hr.T`` are ``torch.nn.LSTM``'s.
    """
    import torch
    import torch.nn.functional as F

    w_ih, w_hh, *rest = weights
    b_ih, b_hh = rest[:2] if has_biases else (None, None)
    outputs = []
    for step in steps:
        gates = F.linear(step, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh)
        enter, forget, value, leave = torch.chunk(gates, 4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(value)
        hidden = F.linear(torch.sigmoid(leave) * torch.tanh(cell), weights[-1])
        outputs.append(hidden)
    return outputs, hidden, cell


@decomposition("aten.lstm.input", fault="onnxscript gives a projected LSTM's cell state the size of its hidden state")
def unroll_projected_lstm(
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Step by step; an LSTM whose hidden and cell states have one size is left alone. Steps must be fixed."""
    import torch

    axis = 1 if batch_first and x.dim() == 3 else 0
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    if each != (5 if has_biases else 3) or not fixed(x.shape[axis]) or (train and dropout):
        return NotImplemented
    steps = list(torch.unbind(x, axis))
    hidden, cell = [], []
    for layer in range(num_layers):
        sides = []
        for side in range(directions):
            i = layer * directions + side
            order = steps[::-1] if side else steps
            weights = params[i * each : (i + 1) * each]
            outputs, h, c = _direction(order, hx[0][i], hx[1][i], weights, has_biases)
            sides.append(outputs[::-1] if side else outputs)
            hidden.append(h)
            cell.append(c)
        steps = [torch.cat(parts, -1) for parts in zip(*sides, strict=True)]
    return torch.stack(steps, axis), torch.stack(hidden), torch.stack(cell)
