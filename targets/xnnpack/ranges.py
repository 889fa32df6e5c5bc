"""Keep the converter from narrowing a program's dynamic ranges.

ExecuTorch's passes re-trace the graph, and every re-trace may add guards to the one shape environment that all
fake tensors share: a fake convolution asks the CPU backend selection "is the batch at least 16?", and the symbol is
then bounded by the answer. The bounds as declared are kept here and put back before memory planning reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Signature


def shape_environments(module: Any) -> list[Any]:
    """The distinct shape environments of the fake tensors and symbols in a graph module, nested graphs included."""
    import torch

    found: dict[int, Any] = {}
    for graph in (m for m in module.modules() if isinstance(m, torch.fx.GraphModule)):
        for node in graph.graph.nodes:
            for leaf in torch.utils._pytree.tree_leaves(node.meta.get("val")):
                env = None
                if isinstance(leaf, torch.SymInt):
                    env = leaf.node.shape_env
                elif isinstance(leaf, torch.Tensor):
                    mode = getattr(leaf, "fake_mode", None)
                    env = mode.shape_env if mode is not None else None
                if env is not None:
                    found[id(env)] = env
    return list(found.values())


def declared_ranges(program: ExportedProgram) -> dict[str, Any]:
    """Symbol name -> torch ``ValueRanges``, as the program declares them (derived dimensions left out)."""
    import sympy

    return {str(k): v for k, v in program.range_constraints.items() if isinstance(k, sympy.Symbol)}


def restore_ranges(module: Any, declared: dict[str, Any]) -> None:
    """Put the declared bounds back into every shape environment that ``module`` uses, and forget replacements.

    A replacement (``s77 -> 2``) is how an equality guard made a dynamic dimension static.
    """
    for env in shape_environments(module):
        for symbol in [s for s in env.var_to_range if str(s) in declared]:
            env.var_to_range[symbol] = declared[str(symbol)]
        for symbol in [s for s in env.replacements if str(s) in declared]:
            del env.replacements[symbol]


@contextlib.contextmanager
def no_cpu_backend_guards() -> Iterator[None]:
    """Keep fake convolutions from guarding on the batch: oneDNN and NNPACK are what they would choose between."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*TF32 acceleration.*")
        with torch.backends.mkldnn.flags(enabled=False), torch.backends.nnpack.flags(enabled=False):
            yield


def narrowed(signature: Signature, sizes: list[tuple[int, ...]]) -> list[str]:
    """Input dimensions that the artifact holds less of than ``signature`` declares, ``"x[0]: 1..64 -> 1..15"``.

    ``sizes``: the upper bound of every input's every dimension, from the method's metadata.
    """
    lines = []
    for spec, have in zip(signature.inputs, sizes, strict=True):
        if len(have) != len(spec.shape):
            lines.append(f"{spec.name}: rank {len(spec.shape)} -> {len(have)}")
            continue
        for axis, (dim, size) in enumerate(zip(spec.shape, have, strict=True)):
            if isinstance(dim, int):
                if dim != size:
                    lines.append(f"{spec.name}[{axis}]: {dim} -> {size}")
            elif dim.hi is None or size < dim.hi:
                top = "no maximum" if dim.hi is None else str(dim.hi)
                lines.append(f"{spec.name}[{axis}]: {dim.lo}..{top} -> {dim.lo}..{size}")
    return lines
