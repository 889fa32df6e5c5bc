"""Reference data: real, random and edge inputs with PyTorch's outputs. The bytes every artifact is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.capture.sizes import SizePoint
from build.errors import InputError
from build.program import op_name, op_nodes
from build.record import CallRecord
from targets.contract import Signature, TensorSpec, shape_at

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    Tensors = Mapping[str, torch.Tensor]

_SEED = 20260601


@dataclass(frozen=True, kw_only=True)
class ReferenceCall:
    """One call with its outputs, in the program's order and by name."""

    record: CallRecord
    inputs: Tensors
    outputs: Tensors


def resampled(spec: TensorSpec, shape: Sequence[int], pool: Sequence[torch.Tensor], seed: int) -> torch.Tensor:
    """An input of ``shape`` that looks like the real ones.

    Floats are normal with the pool's mean and deviation. Integers and booleans repeat a real tensor along every
    axis: token ids stay valid and masks keep agreeing with the tokens they mask (random integers would do neither).
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    real = pool[seed % len(pool)] if pool else None
    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        mean, deviation = 0.0, 1.0
        if real is not None and real.numel() > 1:
            values = real.double()[torch.isfinite(real)]
            if values.numel() > 1:
                mean, deviation = float(values.mean()), float(values.std())
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * deviation + mean).to(dtype)
    if dtype.is_complex:
        return torch.randn(*shape, generator=generator, dtype=dtype)
    if real is None or real.numel() == 0:
        return torch.zeros(*shape, dtype=dtype)
    for axis, size in enumerate(shape):
        index = torch.arange(size) % real.shape[axis]
        real = real.index_select(axis, index)
    return real.contiguous()


#: Ops that leave open which of equal values they name: an artifact may rightly name another.
_OPEN_TIES = frozenset("aten." + op for op in ("topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "mode"))


def leaves_ties_open(program: ExportedProgram) -> bool:
    """Whether equal values in the input leave an output of the program undefined."""
    return any(".".join(op_name(n).split(".")[:2]) in _OPEN_TIES for n in op_nodes(program))


def edge_inputs(signature: Signature, like: Tensors, *, ties: bool = True) -> dict[str, dict[str, torch.Tensor]]:
    """Edge values at the example's sizes: floats all zero or ten times as large as the example's, booleans all alike.

    Args:
        ties: whether equal values are a fair question (``leaves_ties_open`` says when they are not).
    """
    import torch

    dtypes = {s.name: getattr(torch, s.dtype) for s in signature.inputs}
    floats = [n for n, dtype in dtypes.items() if dtype.is_floating_point]
    flags = [n for n, dtype in dtypes.items() if dtype is torch.bool]
    found: dict[str, dict[str, torch.Tensor]] = {}
    if floats and ties:
        found["zeros"] = {n: torch.zeros_like(t) if n in floats else t for n, t in like.items()}
    if floats:
        found["large"] = {n: t * 10 if n in floats else t for n, t in like.items()}
    if flags:
        # a mask that hides everything, and one that hides nothing
        found["false"] = {n: torch.zeros_like(t) if n in flags else t for n, t in like.items()}
        found["true"] = {n: torch.ones_like(t) if n in flags else t for n, t in like.items()}
    return found


_CORRECT = "Correct the declared range or the data; the program must run in PyTorch first."
_GUARDED = (
    "torch.export made a guard that leaves this size out, though the declared range holds it (mostly 1): raise the "
    "lower bound of that dimension to 2, or narrow its range otherwise, and export again."
)


class Recorder:
    """Runs the program in PyTorch and keeps what went in and came out."""

    def __init__(self, signature: Signature, run: Callable[[list[Any]], list[Any]], symbols: Mapping[str, str]) -> None:
        self.signature, self.run, self.symbols = signature, run, symbols
        self.calls: list[ReferenceCall] = []
        self.dropped: list[str] = []

    def add(self, record: CallRecord, inputs: Tensors, *, finite_only: bool = False) -> None:
        """Run one call and keep it.

        Args:
            finite_only: keep it only when every output is finite (for made-up inputs: a model may rightly
                answer them with NaN, which says nothing about an artifact).

        Raises:
            InputError: the program itself refuses these sizes or values, though its ranges allow them.
        """
        import torch

        tensors = [inputs[s.name] for s in self.signature.inputs]
        try:
            outputs = self.run([t.clone() for t in tensors])
        except Exception as error:
            if finite_only:
                self.dropped.append(record.id)
                return
            named = {self.symbols.get(k, k): v for k, v in record.sizes.items()}
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise InputError(
                f"the program itself fails on call '{record.id}'" + (f" at {named}" if named else "") + f": {first}",
                remedy=_GUARDED if "Guard failed" in first else _CORRECT,
            ) from error
        if finite_only and not all(bool(torch.isfinite(t).all()) for t in outputs if t.is_floating_point()):
            self.dropped.append(record.id)
            return
        names = [s.name for s in self.signature.outputs]
        kept = {n: t.detach().clone().contiguous() for n, t in zip(names, outputs, strict=True)}
        self.calls.append(
            ReferenceCall(record=record, inputs={n: t.contiguous() for n, t in inputs.items()}, outputs=kept)
        )

    def add_points(self, points: Sequence[SizePoint], pools: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Add one made-up call per size point."""
        for number, point in enumerate(points):
            inputs = {
                s.name: resampled(s, shape_at(s.shape, point.sizes), pools.get(s.name, ()), _SEED + number)
                for s in self.signature.inputs
            }
            self.add(CallRecord(id=f"{point.kind}-{number}", kind=point.kind, sizes=dict(point.sizes)), inputs)


def write_reference(path: Path, calls: Sequence[ReferenceCall]) -> None:
    """One ``.safetensors``: ``CALL/in/NAME`` and ``CALL/out/NAME``."""
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for call in calls:
        tensors |= {f"{call.record.id}/in/{n}": t.clone() for n, t in call.inputs.items()}
        tensors |= {f"{call.record.id}/out/{n}": t.clone() for n, t in call.outputs.items()}
    save_file(tensors, path)
