"""Does the file compute what the program computes? Run before anything is handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from build.errors import EdgeportError, LoweringError
from build.program import call, op_name, source_of
from targets.contract import Signature, shape_at
from targets.tflite.blame import REMEDY, maker_of, runtime_error
from targets.tflite.runner import LiteRtRunner

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Share of an output's largest magnitude within which two float results count as the same computation. Loose on
#: purpose: this check tells a wrong graph from a right one; the verification that follows judges accuracy.
_CLOSE = {"fp32": 5e-3, "fp16": 5e-2}


def check(
    content: bytes,
    program: ExportedProgram,
    signature: Signature,
    points: Sequence[Mapping[str, int]],
    precision: str,
    quantized: ExportedProgram | None = None,
) -> None:
    """Run the file and the program at the given sizes, on the program's example values repeated to those sizes.

    A quantised file is compared by its noise: single elements are off by much where ranges were not measured, and the
    model's own data, which judges it, is not here. More noise than signal is what a wrong graph gives, and what 8 bits
    make of a layer that they do not suit. Where PyTorch's own integers lose the signal too, or give what the file
    gives, that is for the metric to say.

    Args:
        quantized: the program with its quantize and dequantize ops, where the file was made from such a one.

    Raises:
        LoweringError: LiteRT refuses the file or fails, or an output differs in shape, dtype or value.
    """
    try:
        runner = LiteRtRunner(content, signature)
    except EdgeportError as error:
        raise runtime_error(error.message, program, signature, content) from error
    reference = call(program)
    again = call(quantized) if quantized is not None else None
    examples = _examples(program, signature)
    for sizes in points:
        tensors = [_resized(e, shape_at(s.shape, sizes)) for e, s in zip(examples, signature.inputs, strict=True)]
        try:
            wanted = [t.detach().numpy() for t in reference([t.clone() for t in tensors])]
        except Exception as error:
            first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
            raise LoweringError(
                f"the program itself fails at sizes {dict(sizes)}: {first}",
                op="program",
                remedy="Narrow its dynamic range to sizes at which it runs.",
            ) from error
        feed = {s.name: t.numpy() for s, t in zip(signature.inputs, tensors, strict=True)}
        try:
            got = runner.run(feed)
        except EdgeportError as error:
            raise runtime_error(error.message, program, signature, content) from error
        problems = _problems(signature, got, wanted, _CLOSE.get(precision))
        if problems and again is not None:
            integers = [t.detach().numpy() for t in again([t.clone() for t in tensors])]
            theirs = {s.name: value for s, value in zip(signature.outputs, integers, strict=True)}
            if _problems(signature, theirs, wanted, None) or not _problems(signature, got, integers, None):
                problems = {}
        if problems:
            name, problem = next(iter(problems.items()))
            maker = maker_of(program, signature, name)
            made = f", which {op_name(maker)} makes," if maker is not None else ""
            raise LoweringError(
                f"LiteRT computes something else than PyTorch: output '{name}'{made} {problem} at input shapes "
                f"{[tuple(t.shape) for t in tensors]}",
                op=op_name(maker) if maker is not None else "litert-torch converter",
                source=source_of(maker) if maker is not None else None,
                remedy=REMEDY,
            )


def _problems(
    signature: Signature, got: Mapping[str, Any], wanted: Sequence[Any], close: float | None
) -> dict[str, str]:
    """Output -> what is wrong with it, of those with which something is."""
    pairs = zip(signature.outputs, wanted, strict=True)
    found = {spec.name: difference(got[spec.name], want, close) for spec, want in pairs}
    return {name: problem for name, problem in found.items() if problem}


def _examples(program: ExportedProgram, signature: Signature) -> list[Any]:
    """The program's example inputs; ones where it carries none."""
    import torch
    import torch.utils._pytree as pytree

    given = program.example_inputs
    if given is not None:
        leaves = [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]
        if len(leaves) == len(signature.inputs):
            return [t.detach().contiguous() for t in leaves]
    low = {symbol: lo for symbol, (lo, _) in signature.dynamic_symbols.items()}
    return [torch.ones(shape_at(s.shape, low), dtype=getattr(torch, s.dtype)) for s in signature.inputs]


def _resized(example: Any, shape: Sequence[int]) -> Any:
    """The example repeated, or cut, along each axis to the given shape."""
    import torch

    for axis, size in enumerate(shape):
        if example.shape[axis] != size:
            if example.shape[axis] == 0:
                return torch.ones(list(shape), dtype=example.dtype)
            example = example.index_select(axis, torch.arange(size) % example.shape[axis])
    return example.contiguous()


def difference(got: Any, want: Any, close: float | None) -> str:
    """What is wrong with ``got``; empty when nothing is. Elements that are not finite are left to verification.

    Args:
        close: see ``_CLOSE``; None: by noise.
    """
    import numpy as np

    if got.shape != want.shape or got.dtype != want.dtype:
        return f"has shape {got.shape} and dtype {got.dtype}, wanted {want.shape} and {want.dtype}"
    if want.dtype.kind not in "fc":
        wrong = int(np.count_nonzero(got != want))
        return f"differs in {wrong} of {want.size} elements" if wrong else ""
    both = np.isfinite(want) & np.isfinite(got)
    if not both.any():
        return ""
    a, b = got[both].astype(np.float64), want[both].astype(np.float64)
    worst = float(np.abs(a - b).max())
    if close is None:
        noise, signal = float(((a - b) ** 2).sum()), float((b**2).sum())
        return f"has more noise than signal, and is off by {worst:.3g}" if noise > max(signal, 1e-6 * a.size) else ""
    return f"is off by {worst:.3g}" if worst > close * max(float(np.abs(b).max()), 1e-3) else ""
