"""LSTM, GRU and plain recurrence, sequence first: x is [steps, batch, features].

Where the documentation is silent or wrong, Apple's own operation tests (shipped inside coremltools, and run by Apple on
the real runtime) decide:

- with ``direction="reverse"`` the output sequence is in the order of computation: its first row belongs to the last
  input. The backward half of a bidirectional LSTM is in the order of the input.
- the LSTM's ``clip`` bounds the cell state (the documentation speaks of the cell gate), before the output gate sees it.
- the GRU applies its reset gate before the matrix product, ``W_o x + R_o (r * h) + b`` (the documentation's formula
  multiplies afterwards, as PyTorch does). ``reset_after=True`` asks for that order, but Apple's test of it is marked
  as failing on the runtime: refused.

The slope and offset of ``hard_sigmoid`` (0.2 and 0.5) and the factors of ``scaled_tanh`` (1.7159 and 2/3) are not
documented; these are the customary ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..registry import Args, operation


def _activation(args: Args, key: str, default: str) -> Callable[[Any], Any]:
    import torch

    known: dict[str, Callable[[Any], Any]] = {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "relu": torch.relu,
        "linear": lambda x: x,
        "hard_sigmoid": lambda x: (0.2 * x + 0.5).clamp(0, 1),
        "scaled_tanh": lambda x: 1.7159 * torch.tanh(x * 2 / 3),
    }
    known["sigmoid_hard"] = known["hard_sigmoid"]
    name = args.text(key, default)
    if name not in known:
        raise args.error(f"unknown {key} {name}")
    return known[name]


def _projected(x: Any, weight: Any, bias: Any) -> Any:
    """Input products of every step at once."""
    import torch.nn.functional as functional

    return functional.linear(x, weight, bias)


def _lstm_direction(args: Args, suffix: str, x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """One pass over x in order; gates are stored input, forget, output, cell."""
    import torch

    gate, cell, out = (
        _activation(args, k, d)
        for k, d in (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))
    )
    clip = args.number("clip") if args.has("clip") else None
    peep = args.get("peephole" + suffix)
    peep_i, peep_f, peep_o = (0.0, 0.0, 0.0) if peep is None else peep.chunk(3)
    recurrent = args["weight_hh" + suffix].t()
    steps = []
    for step in _projected(x, args["weight_ih" + suffix], args.get("bias" + suffix)):
        z_i, z_f, z_o, z_c = (step + h @ recurrent).chunk(4, -1)
        c_new = gate(z_f + c * peep_f) * c + gate(z_i + c * peep_i) * cell(z_c)
        c = c_new if clip is None else c_new.clamp(-clip, clip)
        h = gate(z_o + c * peep_o) * out(c)
        steps.append(h)
    return torch.stack(steps), h, c


@operation("lstm")
def _lstm(args: Args) -> Any:
    import torch

    x, h, c, direction = args["x"], args["initial_h"], args["initial_c"], args.text("direction", "forward")
    sequence = args.flag("output_sequence", False)
    if direction != "bidirectional":
        if direction not in ("forward", "reverse"):
            raise args.error(f"unknown direction {direction}")
        y, h, c = _lstm_direction(args, "", x.flip(0) if direction == "reverse" else x, h, c)
        return (y if sequence else h[None]), h, c
    size = args["weight_hh"].shape[1]
    y_f, h_f, c_f = _lstm_direction(args, "", x, h[:, :size], c[:, :size])
    y_b, h_b, c_b = _lstm_direction(args, "_back", x.flip(0), h[:, size:], c[:, size:])
    h, c = torch.cat([h_f, h_b], -1), torch.cat([c_f, c_b], -1)
    return (torch.cat([y_f, y_b.flip(0)], -1) if sequence else h[None]), h, c


def _one_direction(args: Args) -> Any:
    direction = args.text("direction", "forward")
    if direction not in ("forward", "reverse"):
        raise args.error(f"unknown direction {direction}")
    return args["x"].flip(0) if direction == "reverse" else args["x"]


@operation("gru")
def _gru(args: Args) -> Any:
    """Gates are stored reset, output, update."""
    import torch

    if args.flag("reset_after", False):
        raise args.error("reset_after is not reliable on Core ML's runtime; write the recurrence out instead")
    gate, out = _activation(args, "recurrent_activation", "sigmoid"), _activation(args, "activation", "tanh")
    h = args["initial_h"]
    r_reset, r_out, r_update = (w.t() for w in args["weight_hh"].chunk(3))
    bias = args.get("bias")
    if args.has("input_bias"):
        bias = args["input_bias"] if bias is None else bias + args["input_bias"]
    steps = []
    for step in _projected(_one_direction(args), args["weight_ih"], bias):
        x_reset, x_out, x_update = step.chunk(3, -1)
        reset, update = gate(x_reset + h @ r_reset), gate(x_update + h @ r_update)
        h = (1 - update) * out(x_out + (reset * h) @ r_out) + update * h
        steps.append(h)
    return (torch.stack(steps) if args.flag("output_sequence", False) else h[None]), h


@operation("rnn")
def _rnn(args: Args) -> Any:
    import torch

    out, h, recurrent = _activation(args, "activation", "tanh"), args["initial_h"], args["weight_hh"].t()
    steps = []
    for step in _projected(_one_direction(args), args["weight_ih"], args.get("bias")):
        h = out(step + h @ recurrent)
        steps.append(h)
    return (torch.stack(steps) if args.flag("output_sequence", False) else h[None]), h
