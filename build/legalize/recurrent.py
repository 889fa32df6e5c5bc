"""Recurrent layers, unrolled over time. The number of steps must be fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed, torch_decomposition
from build.legalize.core import Decomposition, decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _unrolled(op: str, steps_known: bool = True) -> Decomposition:
    written_out = torch_decomposition(op)

    def unroll(x: Any, *args: Any, **kwargs: Any) -> Any:
        batch_first = bool(args[-1])
        if steps_known and not fixed(x.shape[1 if batch_first and x.dim() == 3 else 0]):
            return NotImplemented
        return written_out(x, *args, **kwargs)

    return unroll


for _layer in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    decomposition(
        f"aten.{_layer}.input",
        fault=f"coremltools and litert-torch cannot read {_layer}.input as export spells it",
        name=f"unroll_{_layer}",
    )(_unrolled(f"aten.{_layer}.input"))


def _gates(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any, b_hh: Any) -> tuple[Tensor, Tensor]:
    import torch.nn.functional as F

    return F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)


@decomposition("aten.lstm_cell.default", fault="coremltools and OpenVINO have no lstm_cell")
def lstm_cell_written_out(x: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
    """One step of an LSTM: gates in, forget, cell, out."""
    import torch

    state, carry = hx
    from_x, from_h = _gates(x, state, w_ih, w_hh, b_ih, b_hh)
    enter, forget, cell, leave = (from_x + from_h).chunk(4, 1)
    carry = torch.sigmoid(forget) * carry + torch.sigmoid(enter) * torch.tanh(cell)
    return torch.sigmoid(leave) * torch.tanh(carry), carry


@decomposition("aten.gru_cell.default", fault="coremltools and OpenVINO have no gru_cell")
def gru_cell_written_out(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
    """One step of a GRU: gates reset, update, new."""
    import torch

    from_x, from_h = _gates(x, h, w_ih, w_hh, b_ih, b_hh)
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = from_x.chunk(3, 1), from_h.chunk(3, 1)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return new + torch.sigmoid(update_x + update_h) * (h - new)


@decomposition("aten.rnn_tanh_cell.default", fault="coremltools and OpenVINO have no rnn_tanh_cell")
def rnn_tanh_cell_written_out(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """One step of a plain recurrent layer with tanh."""
    import torch

    from_x, from_h = _gates(x, h, w_ih, w_hh, b_ih, b_hh)
    return torch.tanh(from_x + from_h)


@decomposition("aten.rnn_relu_cell.default", fault="coremltools and OpenVINO have no rnn_relu_cell")
def rnn_relu_cell_written_out(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """One step of a plain recurrent layer with ReLU."""
    import torch

    from_x, from_h = _gates(x, h, w_ih, w_hh, b_ih, b_hh)
    return torch.relu(from_x + from_h)
