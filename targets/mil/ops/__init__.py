"""The meaning of every MIL operation the evaluator knows, by family. Importing a family fills the registry."""

from __future__ import annotations

from . import (
    activation,
    compressed,
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    resampling,
    shaping,
    slicing,
    sorting,
)

__all__ = [
    "activation",
    "compressed",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
    "resampling",
    "shaping",
    "slicing",
    "sorting",
]
