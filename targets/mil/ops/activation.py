"""Activation functions. At exactly 0 (or the threshold) the formulas of the documentation agree with these branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..registry import OPERATIONS, Args, axis_of, operation


def _simple(name: str) -> Callable[[Args], Any]:
    def compute(args: Args) -> Any:
        import torch.nn.functional as functional

        return getattr(functional, name)(args["x"])

    return compute


for _name in ("sigmoid", "relu", "relu6", "silu", "softsign"):
    OPERATIONS[_name] = _simple(_name)


@operation("softplus")
def _softplus(args: Args) -> Any:
    """log(1 + e^x), in the form that does not overflow."""
    import torch

    return torch.logaddexp(args["x"], torch.zeros(()))


@operation("softmax")
def _softmax(args: Args) -> Any:
    import torch

    return torch.softmax(args["x"], axis_of(args, "axis", args["x"].dim(), -1))


@operation("gelu")
def _gelu(args: Args) -> Any:
    import torch
    import torch.nn.functional as functional

    x, mode = args["x"], args.text("mode", "EXACT")
    if mode == "EXACT":
        return functional.gelu(x)
    if mode == "TANH_APPROXIMATION":
        return functional.gelu(x, approximate="tanh")
    if mode == "SIGMOID_APPROXIMATION":
        return x * torch.sigmoid(1.702 * x)
    raise args.error(f"unknown mode {mode}")


@operation("leaky_relu")
def _leaky_relu(args: Args) -> Any:
    import torch

    x = args["x"]
    return torch.where(x >= 0, x, x * args.number("alpha"))


@operation("thresholded_relu")
def _thresholded_relu(args: Args) -> Any:
    import torch

    x = args["x"]
    return torch.where(x >= args.number("alpha"), x, torch.zeros(()))


@operation("elu")
def _elu(args: Args) -> Any:
    import torch

    x = args["x"]
    return torch.where(x > 0, x, args.number("alpha") * torch.expm1(x))


@operation("clamped_relu")
def _clamped_relu(args: Args) -> Any:
    import torch

    x = args["x"]
    return torch.where(x >= 0, x, x * args.number("alpha")).clamp(max=args.number("beta"))


@operation("linear_activation")
def _linear_activation(args: Args) -> Any:
    return args["x"] * args.number("alpha") + args.number("beta")


@operation("scaled_tanh")
def _scaled_tanh(args: Args) -> Any:
    import torch

    return args.number("alpha") * torch.tanh(args.number("beta") * args["x"])


@operation("sigmoid_hard")
def _sigmoid_hard(args: Args) -> Any:
    return (args.number("alpha") * args["x"] + args.number("beta")).clamp(0, 1)


def _per_channel(vector: Any, rank: int) -> Any:
    return vector.reshape([1, -1] + [1] * (rank - 2))


@operation("prelu")
def _prelu(args: Args) -> Any:
    import torch

    x = args["x"]
    return torch.where(x >= 0, x, x * _per_channel(args["alpha"], x.dim()))


@operation("softplus_parametric")
def _softplus_parametric(args: Args) -> Any:
    import torch

    x = args["x"]
    alpha, beta = (_per_channel(args[k], x.dim()) for k in ("alpha", "beta"))
    return alpha * torch.logaddexp(beta * x, torch.zeros(()))
