"""Normalisations. Variances are the mean of squared differences from the mean, in float32 (never E[x²]−E[x]²)."""

from __future__ import annotations

from typing import Any

from ..registry import Args, operation


def _affine(y: Any, args: Args, shape: list[int]) -> Any:
    gamma, beta = args.get("gamma"), args.get("beta")
    if gamma is not None:
        y = y * gamma.reshape(shape)
    return y if beta is None else y + beta.reshape(shape)


def _standardize(x: Any, axes: list[int], epsilon: float) -> Any:
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True) + epsilon).sqrt()


@operation("batch_norm")
def _batch_norm(args: Args) -> Any:
    x = args["x"]
    shape = [1, -1] + [1] * (x.dim() - 2)
    variance = args["variance"].reshape(shape) + args.number("epsilon", 1e-5)
    return _affine((x - args["mean"].reshape(shape)) / variance.sqrt(), args, shape)


@operation("instance_norm")
def _instance_norm(args: Args) -> Any:
    x = args["x"]
    y = _standardize(x, list(range(2, x.dim())), args.number("epsilon", 1e-5))
    return _affine(y, args, [1, -1] + [1] * (x.dim() - 2))


@operation("layer_norm")
def _layer_norm(args: Args) -> Any:
    x = args["x"]
    axes = sorted(a % x.dim() for a in args.integers("axes", range(x.dim())))
    y = _standardize(x, axes, args.number("epsilon", 1e-5))
    return _affine(y, args, [x.shape[i] if i in axes else 1 for i in range(x.dim())])


@operation("l2_norm")
def _l2_norm(args: Args) -> Any:
    """Over the last three dimensions; all others are batch."""
    x = args["x"]
    return x / ((x * x).sum((-3, -2, -1), keepdim=True) + args.number("epsilon", 1e-6)).sqrt()


@operation("local_response_norm")
def _local_response_norm(args: Args) -> Any:
    """The window of ``size`` channels around each.

    An even size is refused: the documentation does not say on which side the odd channel lies, PyTorch takes one more
    before, and Apple's own operation test expects it on neither side.
    """
    import torch.nn.functional as functional

    if args.integer("size") % 2 == 0:
        raise args.error(f"the documentation does not define an even size ({args.integer('size')})")
    return functional.local_response_norm(
        args["x"], args.integer("size"), args.number("alpha", 1e-4), args.number("beta", 0.75), args.number("k", 1.0)
    )
