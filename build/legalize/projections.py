"""LSTM with a projection of its hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed, torch_decomposition
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition(
    "aten.lstm.input", fault="onnxscript gives a projected LSTM's cell state the size of its hidden state", name="unroll_projected_lstm"
)
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
    """Step by step; an LSTM whose hidden and cell states are of one size is left alone. Steps must be fixed."""
    if hx[0].shape[-1] == hx[1].shape[-1] or not fixed(x.shape[1 if batch_first and x.dim() == 3 else 0]):
        return NotImplemented
    written_out = torch_decomposition("aten.lstm.input")
    return written_out(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
