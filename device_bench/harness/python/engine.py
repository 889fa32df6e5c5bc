"""What an engine offers the harness, and how it fails."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from targets.contract import Array, Signature

Scalar = str | int | float | bool | None
Stage = Literal["job", "tensors", "load", "prepare", "run", "outputs", "write"]


class Failure(Exception):
    """Why there is no measurement, and at which stage of the run."""

    def __init__(self, stage: Stage, message: str) -> None:
        super().__init__(message)
        self.stage = stage


@dataclass(frozen=True, kw_only=True)
class Plan:
    """When the timed loop ends.

    Attributes:
        samples: room for as many as there should be, in ns; made before the loop, so that the loop allocates none.
        min_runs: and ``min_ns``: both must be reached.
        max_runs: and ``max_ns``: where it ends in any case.
    """

    samples: array[int]
    min_runs: int
    min_ns: int
    max_runs: int
    max_ns: int

    def grow(self) -> int:
        """Double the room, where the warm-up was so slow that fewer samples were expected. Returns what there is."""
        self.samples.frombytes(bytes(8 * max(len(self.samples), 1)))
        return len(self.samples)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """How the timed loop went: samples that were taken, from the first start to the last end in ns."""

    runs: int
    ns: int


class Engine(Protocol):
    """One artifact in one runtime. Every method raises Failure."""

    runtime: str
    version: str
    #: how the samples of :meth:`loop` are measured.
    clock: str
    #: how many inferences :meth:`run` and :meth:`loop` keep going at a time; known once it is loaded.
    concurrent: int
    #: whether the loop is a plain one: one call after the other, made by the thread that waits for them.
    plain: bool

    def load(self, artifact: Path, signature: Signature, threads: int, options: Mapping[str, Any]) -> None:
        """Create the runtime, read the file and prepare it: what is timed as loading."""
        ...

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Bind the inputs of the calls to come."""
        ...

    def run(self) -> None:
        """One inference, or one on each of the requests that run at a time."""
        ...

    def loop(self, plan: Plan) -> Loop:
        """The timed loop."""
        ...

    def spoil(self, pattern: int) -> None:
        """Fill the buffers that the next inference writes with a byte: what is not written then shows."""
        ...

    def outputs(self) -> list[Mapping[str, Array]]:
        """Copies of the newest outputs: one mapping for each request that runs at a time."""
        ...

    def threads(self) -> int | None:
        """How many threads the runtime says it computes with; None: it does not say."""
        ...

    def details(self) -> dict[str, Scalar]:
        """What else the runtime says of how it runs the artifact."""
        ...
