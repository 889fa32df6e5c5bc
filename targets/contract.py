"""What a target is: the Protocol that one module per target satisfies, and the types it speaks.

Nothing here imports torch or a toolchain at run time, so any process can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch.export import ExportedProgram

    Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class DynamicDim:
    """A dimension whose size is chosen at run time.

    Attributes:
        symbol: the root symbol; equal symbols are equal sizes (``batch`` of two inputs).
        lo, hi: inclusive bounds of this dimension's size; ``hi`` is None when the program declares no maximum.
        scale, offset: the size is ``scale * root + offset`` (8·n has scale 8).
    """

    symbol: str
    lo: int
    hi: int | None
    scale: int = 1
    offset: int = 0


Dim = int | DynamicDim


def shape_at(shape: Sequence[Dim], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A declared shape at concrete sizes of its root symbols."""
    return tuple(d if isinstance(d, int) else d.scale * sizes[d.symbol] + d.offset for d in shape)


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Name, dtype (numpy's name: ``float32``, ``int64``, ``bool``) and shape of one input or output."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a program (or an artifact) takes and gives, in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def dynamic_symbols(self) -> dict[str, tuple[int, int | None]]:
        """Root symbol -> inclusive bounds of the root (not of a derived dimension)."""
        found: dict[str, tuple[int, int | None]] = {}
        for spec in self.inputs:
            for dim in spec.shape:
                if isinstance(dim, DynamicDim):
                    lo = -((dim.offset - dim.lo) // dim.scale)
                    hi = None if dim.hi is None else (dim.hi - dim.offset) // dim.scale
                    old = found.get(dim.symbol)
                    if old is not None:
                        lo = max(lo, old[0])
                        hi = old[1] if hi is None else hi if old[1] is None else min(hi, old[1])
                    found[dim.symbol] = (lo, hi)
        return found


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row of the pre-flight matrix.

    Attributes:
        subject: the op (``aten.gru.input``), dtype (``complex64``) or dynamic dimension it speaks of.
        kind: what sort of subject it is.
        verdict: ``fine``, ``rewritten`` (``why`` says how) or ``refused`` (``why``, ``source``, ``remedy``).
        source: the user's source line, ``file.py:12 in forward``, when the program's stack trace has it.
    """

    subject: str
    kind: Literal["op", "dtype", "dim", "program"]
    verdict: Literal["fine", "rewritten", "refused"]
    why: str = ""
    source: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Which nodes the target's accelerator backend takes.

    Attributes:
        delegated: count of nodes taken by the backend (XNNPACK; the whole graph where there is no partitioner).
        fallback: op name -> count of nodes that run on the portable (slow) kernels.
        method: how it was counted, in one phrase.
    """

    delegated: int
    fallback: Mapping[str, int] = field(default_factory=dict)
    method: str = ""

    @property
    def delegated_share(self) -> float:
        """Share of nodes that are delegated, 0 to 1 (1 for a graph with no nodes)."""
        total = self.delegated + sum(self.fallback.values())
        return 1.0 if total == 0 else self.delegated / total


@dataclass(frozen=True, kw_only=True)
class EntryPoint:
    """A way into an artifact: an ExecuTorch method, a LiteRT signature. ``sizes``: root symbol -> fixed size."""

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LowerRequest:
    """One artifact to make.

    Attributes:
        model: the model's name, for messages.
        signature: the program's own signature: the artifact's must equal it.
        precision: a name of ``targets/precisions.py``.
        directory: an empty staging folder; artifact files are written here and nowhere else.
        calibration: the calls to calibrate with: input name -> tensor each. Given for calibrated precisions only.
        keep_float: names of nodes of the program that stay in floating point at a quantised precision: the op's
            arithmetic, its weights, and the value that comes out, up to the next op that is not mere passing on
            (see ``build.quantize.regions``). A name that the target cannot keep is an error, never passed over.
        converted: for a target that runs its files while it lowers: to be called when they are made, before they run.
            What lowering takes (memory, at its peak) is taken then, after ``lower`` otherwise.
    """

    model: str
    signature: Signature
    precision: str
    directory: Path
    calibration: Sequence[Mapping[str, Array]] = ()
    keep_float: tuple[str, ...] = ()
    converted: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Which ops over a stored weight compute in 8-bit integers, at a precision whose values are to be integers.

    Attributes:
        integers: how many do.
        floats: op name -> count of those that read 8-bit weights and compute in floating point all the same.
    """

    integers: int
    floats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """What ``lower`` made.

    Attributes:
        files: paths relative to the request's directory, the main file (or package folder) first.
        coverage: delegated and fallback nodes.
        entry_points: more than one only where the runtime cannot express the range with one.
        warnings: lines for the manifest: anything a release engineer must know. ``--strict`` fails on any.
        narrowed: input dims whose range is smaller than the program's, ``"x[0]: 1..64 -> 1..15"``; each becomes a
            warning.
        nan_unsafe: ops (``aten.relu.default at file.py:12``) through which NaN or infinity does not pass as in PyTorch
            and that no rewrite mends: where one reached such an op, a mismatch in NaN or infinity is a warning that
            names it, not a failure. Nothing else is excused.
        unquantized: for a quantised precision, op name -> count of weight-carrying ops that stayed in floating point
            (whatever the reason), ``keep_float`` left out. Everything quantised: empty.
        arithmetic: for int8-dynamic and int8-static, what is computed in integers; None for any other precision.
        contract: the facts a runtime cannot hold (ExecuTorch has no tensor names), for the manifest.
    """

    files: tuple[str, ...]
    coverage: Coverage
    entry_points: tuple[EntryPoint, ...] = (EntryPoint(name="forward"),)
    warnings: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    nan_unsafe: tuple[str, ...] = ()
    unquantized: Mapping[str, int] = field(default_factory=dict)
    arithmetic: Arithmetic | None = None
    contract: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Runner(Protocol):
    """An artifact loaded into its own runtime on this host."""

    #: runtime and version, as the manifest names it: ``"executorch 1.5.1"``.
    runtime: str

    def signature(self) -> Signature:
        """The signature that the artifact itself declares, read back from its files (not what we asked for)."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Inputs by name, C-contiguous; outputs by name, with the dtypes of the program.

        Raises:
            VerificationError: the runtime returned something that is not a result (wrong shape, stale buffer).
            InputError: an input lies outside the declared range.
        """
        ...


class Target(Protocol):
    """The plain functions and constants that a module in ``targets/`` offers."""

    #: names of the rewrites that ``lower`` applies, in order, with ``build.legalize.legalize(program, REWRITES)``.
    REWRITES: Sequence[str]

    def preflight(self, program: ExportedProgram, signature: Signature) -> list[Finding]:
        """What this target cannot take, and what will be done about each.

        Needs torch only, takes seconds, and changes nothing of the program: the same one is lowered next.
        """
        ...

    def lower(self, program: ExportedProgram, request: LowerRequest) -> Lowered:
        """Convert. ``program`` is this call's own and may be mutated; it is not legalised yet.

        Raises:
            LoweringError: with the op, its source line and the way out.
        """
        ...

    def load(self, directory: Path, lowered_files: Sequence[str], signature: Signature) -> Runner:
        """Load the files of an artifact into the target's own runtime.

        Raises:
            MissingToolError: the runtime does not exist on this host.
            VerificationError: the runtime refuses the artifact.
        """
        ...
