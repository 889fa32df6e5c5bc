"""Recurrent layers, unrolled over time. The number of steps must be fixed."""

from __future__ import annotations

from typing import Any

from build.legalize.common import fixed, torch_decomposition
from build.legalize.core import Decomposition, decomposition


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

for _cell in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"):
    decomposition(
        f"aten.{_cell}.default", fault=f"coremltools and OpenVINO have no {_cell}", name=f"{_cell}_written_out"
    )(torch_decomposition(f"aten.{_cell}.default"))
