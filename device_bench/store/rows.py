"""What a reader of the store gets. Standard library only."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from build.errors import InputError

_SINCE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z?)?")


@dataclass(frozen=True, kw_only=True, order=True)
class Key:
    """What is compared with itself over time.

    Attributes:
        batch: of the timed call; 0 when the program has no batch that was chosen.
        variant: "" for native; "wasm", "webgpu", "latency", "throughput", a compute unit…
    """

    model: str
    target: str
    precision: str
    device: str
    threads: int
    batch: int = 0
    variant: str = ""

    @property
    def parts(self) -> tuple[str, str, str, str, int, int, str]:
        """Model, target, precision, device, threads, batch, variant."""
        return self.model, self.target, self.precision, self.device, self.threads, self.batch, self.variant

    @property
    def label(self) -> str:
        """``digits_cnn executorch int8-static on pixel-7, 1 thread, batch 4, latency``. Not escaped: see ``plain``."""
        return f"{self.artifact} on {self.device}, {self.settings}"

    @property
    def artifact(self) -> str:
        """``digits_cnn executorch int8-static``."""
        return f"{self.model} {self.target} {self.precision}"

    @property
    def settings(self) -> str:
        """``2 threads, batch 4, latency``."""
        words = [f"{self.threads} thread{'s' if self.threads != 1 else ''}"]
        words += [f"batch {self.batch}"] if self.batch else []
        words += [self.variant] if self.variant else []
        return ", ".join(words)

    def to_json(self) -> dict[str, Any]:
        """The seven parts; a batch that was not chosen is null."""
        return {
            "model": self.model,
            "target": self.target,
            "precision": self.precision,
            "device": self.device,
            "threads": self.threads,
            "batch": self.batch or None,
            "variant": self.variant,
        }


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which measurements. An empty tuple, or None, takes all.

    Attributes:
        version: see :func:`device_bench.store.versions.matches`.
        since: ``2026-11-29`` or ``2026-11-29T20:00:00Z``: started then or later (UTC).
        ok: only those that were taken (True), or only those that failed (False).
        sustained: only those of long runs (True), which heat a device up, or only the others (False).
    """

    models: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    version: str | None = None
    since: str | None = None
    ok: bool | None = None
    sustained: bool | None = None

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            InputError: ``since`` is no date.
        """
        if self.since is not None and not _is_date(self.since):
            raise InputError(f"'{self.since[:40]}' is no date", remedy="Write 2026-11-29 or 2026-11-29T20:00:00Z.")


def _is_date(text: str) -> bool:
    try:
        return bool(_SINCE.fullmatch(text) and datetime.fromisoformat(text.removesuffix("Z")))
    except ValueError:  # there is no such day or hour
        return False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What many measurements have in common, as their files hold it.

    Attributes:
        device: kind, serial, arch, machine, manufacturer, model, soc, os, abi, cores, memory_mb, emulated, …
        settings: threads, affinity, warm-up, runs, seconds, batch; without seed and position.
    """

    device: Mapping[str, Any]
    settings: Mapping[str, Any]
    toolchain: Mapping[str, str]
    harness: Mapping[str, str] | None
    runtime: Mapping[str, str] | None
    governors: Sequence[str]
    clock: str | None


class Measurement(NamedTuple):
    """One measurement without its raw samples. Figures are None where it failed.

    A tuple, since a hundred thousand of them are made at once.

    Attributes:
        path: below the results folder; ``ResultStore.document`` reads it whole.
        artifact_sha256, artifact_key, program: of the artifact's bytes, of what it was built from, of the program.
        per_second: inferences, the batch counted.
        metric: name, the artifact's value on the device, PyTorch's value.
        changed_decisions: against PyTorch, ties not counted; None where accuracy was not judged.
        doubts: why its times do not count, whatever they are: emulated, the gate timed out, charging, throttled.
        warnings: ``{"code", "message", "advice"}``.
        details: what the kind of harness adds (browser, hint, provider…): flat.
        error: ``{"code", "message", …}`` of one that failed.
    """

    path: str
    run: str
    key: Key
    repeat: int
    ok: bool
    error: Mapping[str, Any] | None
    emulated: bool
    started: str
    finished: str
    artifact_sha256: str
    artifact_bytes: int
    artifact_key: str
    program: str
    load_ms: float | None
    first_ms: float | None
    peak_mb: float | None
    samples: int
    min_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    mean_ms: float | None
    stdev_ms: float | None
    spread: float | None
    drift: float | None
    per_second: float | None
    metric: tuple[str, float, float] | None
    max_abs_diff: float | None
    decisions: int | None
    changed_decisions: int | None
    near_ties: int | None
    host_identical: bool | None
    doubts: tuple[str, ...]
    warnings: tuple[Mapping[str, str], ...]
    details: Mapping[str, Any]
    facts: Facts

    @property
    def versions(self) -> dict[str, str]:
        """What can differ from version to version: harness, runtime, artifact, key, program, each tool."""
        found = {
            "artifact": self.artifact_sha256,
            "key": self.artifact_key,
            "program": self.program,
            "harness": (self.facts.harness or {}).get("version", ""),
            "runtime": (self.facts.runtime or {}).get("version", ""),
            **self.facts.toolchain,
        }
        return {k: v for k, v in found.items() if v}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All repeats of one key in one run, in their order.

    Attributes:
        measurements: failed ones included, never empty.
    """

    key: Key
    run: str
    measurements: tuple[Measurement, ...]

    @property
    def good(self) -> tuple[Measurement, ...]:
        """Those that were taken."""
        return tuple(m for m in self.measurements if m.ok)

    @property
    def p50_ms(self) -> float | None:
        """The middle one of the repeats' medians."""
        return statistics.median_low([m.p50_ms for m in self.good if m.p50_ms is not None] or [None])  # type: ignore[type-var]

    @property
    def p95_ms(self) -> float | None:
        """The largest of the repeats' p95: what the lab judges budgets on."""
        return max((m.p95_ms for m in self.good if m.p95_ms is not None), default=None)

    @property
    def peak_mb(self) -> float | None:
        """The largest of the repeats' peaks."""
        return max((m.peak_mb for m in self.good if m.peak_mb is not None), default=None)

    @property
    def changed_decisions(self) -> int | None:
        """The most of any repeat."""
        return max((m.changed_decisions for m in self.good if m.changed_decisions is not None), default=None)

    @property
    def metric(self) -> tuple[str, float, float] | None:
        """Name, value, PyTorch's value: of the first repeat that has one."""
        return next((m.metric for m in self.good if m.metric is not None), None)

    @property
    def emulated(self) -> bool:
        """Whether any repeat ran where times mean nothing."""
        return any(m.emulated for m in self.measurements)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Of all repeats, each once."""
        return tuple(dict.fromkeys(d for m in self.measurements for d in m.doubts))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the lab.

    Attributes:
        started: UTC; of the first measurement where ``run.json`` is missing or damaged.
        record: ``run.json``; None where it is missing or damaged.
    """

    name: str
    started: str
    record: Mapping[str, Any] | None
    measurements: int

    @property
    def sustained(self) -> bool:
        """Whether it measured one long loop in place of repeats."""
        return bool((self.record or {}).get("sustained"))

    @property
    def order(self) -> tuple[str, str]:
        """Sorts runs from oldest to newest."""
        return (self.started, self.name)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An artifact's manifest. ``value`` keeps to ``build/manifest.schema.json``.

    Attributes:
        path: where it was found: below the results, or below the output folder.
        sha256: of the artifact's main file; "" where none was built.
    """

    path: str
    model: str
    target: str
    precision: str
    status: str
    key: str
    sha256: str
    value: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """A file that was skipped, and why. Both are one line of harmless text."""

    path: str
    reason: str
