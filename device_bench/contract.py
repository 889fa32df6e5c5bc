"""What measures an artifact, as the lab sees it: the native harness, a page in a browser, a runtime in Python."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from device_bench.devices.base import Facts, Place, Pushed

if TYPE_CHECKING:
    import argparse

    from device_bench.artifacts import Artifact
    from device_bench.job import Data, Settings
    from device_bench.options import LabOptions
    from targets.contract import Array

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class HarnessRun:
    """A run that ended well.

    Attributes:
        result: what the harness wrote, checked (``harness_result.schema.json``).
        outputs: call id -> output name -> array; None when the evaluation set was not run.
        details: facts of this way of running that others do not have: the user agent, the provider really used, …
        emulated: why this run's times mean nothing, though the place is real: a GPU in software; None: they do.
    """

    result: Mapping[str, Any]
    outputs: Mapping[str, Mapping[str, Array]] | None
    pushed: Pushed = field(default_factory=Pushed)
    details: Mapping[str, Scalar] = field(default_factory=dict)
    emulated: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure, and how.

    Attributes:
        variant: one of the platform's ways of running; empty where there is only one.
        evaluate: run the evaluation calls too.
        timeout: seconds for the whole run; None: the harness's own bound.
        emulated: the place runs programs on an emulated CPU.
    """

    artifact: Artifact
    data: Data
    settings: Settings
    variant: str = ""
    evaluate: bool = False
    timeout: float | None = None
    emulated: bool = False


class Harness(Protocol):
    """Measures one artifact at a time at one place."""

    @property
    def version(self) -> str:
        """Names the harness in results: other code, another version."""
        ...

    @property
    def arch(self) -> str:
        """What it runs on: ``x86_64``, ``aarch64``, ``wasm``."""
        ...

    def measure(self, task: Task) -> HarnessRun:
        """Measure once.

        Raises:
            DeviceLostError: the place is gone; it may come back.
            HarnessError: the harness crashed or hung, or its engine failed.
            RejectedResultError: what came back is not the result of this job.
            DeviceError: the place refused something.
        """
        ...


class Platform(Protocol):
    """One ``bench-…`` session: a module of ``device_bench/platforms``.

    Attributes:
        PLATFORM: whose budgets apply.
        BUILDER: the session that builds what is measured here.
        TARGETS: whose artifacts run here.
        VARIANTS: the ways of running an artifact, the usual one first; ``""`` where there is only one.
    """

    PLATFORM: str
    BUILDER: str
    TARGETS: tuple[str, ...]
    VARIANTS: tuple[str, ...]

    def add_options(self, group: argparse._ArgumentGroup) -> None:
        """Its own options; their values are ``LabOptions.own``."""
        ...

    def check(self, options: LabOptions) -> None:
        """Look at the options, and at whether this machine can measure at all, before anything else is done.

        Raises:
            InputError: they ask for what there is not here.
            MissingToolError: this is no machine for it.
        """
        ...

    def runs(self, artifact: Artifact, variant: str) -> bool:
        """Whether an artifact has this way of running here."""
        ...

    def places(self, options: LabOptions) -> AbstractContextManager[list[Place]]:
        """Where to measure, for as long as the context is open.

        Raises:
            InputError: none is named.
            DeviceError: none is there, or it cannot be reached.
        """
        ...

    def harness(self, place: Place, facts: Facts) -> Harness:
        """What measures there."""
        ...

    def host_outputs(
        self, options: LabOptions, artifact: Artifact, data: Data
    ) -> Mapping[str, Mapping[str, Array]] | None:
        """This host's outputs for the same artifact, to compare with; None: it cannot run it, which is said."""
        ...
