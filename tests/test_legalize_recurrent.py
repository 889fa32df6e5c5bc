"""Rewrites of recurrent layers and cells keep the program's meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.legalize_support import Case, check

R = torch.randn
torch.manual_seed(0)


def batches(*shape: int, sizes: tuple[int, ...] = (2, 1, 7)) -> tuple[tuple[torch.Tensor], ...]:
    return tuple((R(n, *shape),) for n in sizes)


def batch() -> tuple[dict[int, Any], ...]:
    return ({0: Dim("n", min=1, max=16)},)


class _Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


class _Cell(nn.Module):
    def __init__(self, cell: nn.Module, states: int = 1) -> None:
        super().__init__()
        self.cell = cell
        self.states = states

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.cell(x, (h, h)) if self.states == 2 else self.cell(x, h)


CASES: dict[str, list[Case]] = {
    "unroll_lstm": [
        Case(
            function=_Recurrent(nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)),
            inputs=batches(4, 6),
            dynamic=batch(),
        ),
        Case(function=_Recurrent(nn.LSTM(6, 5, batch_first=True, proj_size=3)), inputs=((R(2, 4, 6),),)),
    ],
    "unroll_gru": [
        Case(
            function=_Recurrent(nn.GRU(6, 5, batch_first=True, bidirectional=True)),
            inputs=batches(4, 6),
            dynamic=batch(),
        ),
        Case(function=_Recurrent(nn.GRU(6, 5)), inputs=((R(4, 2, 6),),)),
    ],
    "unroll_rnn_tanh": [
        Case(function=_Recurrent(nn.RNN(6, 5, batch_first=True)), inputs=batches(4, 6), dynamic=batch())
    ],
    "unroll_rnn_relu": [
        Case(
            function=_Recurrent(nn.RNN(6, 5, nonlinearity="relu", batch_first=True)),
            inputs=batches(4, 6),
            dynamic=batch(),
        )
    ],
    "lstm_cell_written_out": [Case(function=_Cell(nn.LSTMCell(4, 3), 2), inputs=((R(2, 4), R(2, 3)),))],
    "gru_cell_written_out": [Case(function=_Cell(nn.GRUCell(4, 3)), inputs=((R(2, 4), R(2, 3)),))],
    "rnn_tanh_cell_written_out": [Case(function=_Cell(nn.RNNCell(4, 3)), inputs=((R(2, 4), R(2, 3)),))],
    "rnn_relu_cell_written_out": [
        Case(function=_Cell(nn.RNNCell(4, 3, nonlinearity="relu")), inputs=((R(2, 4), R(2, 3)),))
    ],
}


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in CASES.items() for c in cases])
def test_rewrite_keeps_the_meaning(name: str, case: Case) -> None:
    check(name, case)
