"""Evaluates a saved Core ML ``.mlpackage`` where Core ML's own runtime does not exist.

``load`` reads the package's files back (graph, declared shapes, weights) and ``evaluate`` computes it, operation by
operation, from the documentation of each. No code is shared with the converter that wrote the package.
"""

from __future__ import annotations

from .graph import DimRange, ValueInfo
from .program import Program, load
from .run import evaluate, make_state

__all__ = ["DimRange", "Program", "ValueInfo", "evaluate", "load", "make_state"]
