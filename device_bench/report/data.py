"""What a report holds. Every string in it has been cleaned. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from device_bench.statistics import Statistics
from device_bench.sustained import Sustained
from device_bench.verdict import Word

Kind = Literal["failed", "refused", "unverified", "budget", "inconclusive", "unavailable", "missing", "warning"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The task's metric of an artifact, and PyTorch's. ``device`` is where it was measured; empty: on the host."""

    name: str
    value: float
    reference: float
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Build:
    """One artifact, as its manifest tells.

    Attributes:
        key: of what it was made from.
        sha256: of the file that a runtime opens; empty where it is a folder, or there is none.
        intact: whether the files in the output folder are those that the manifest lists.
        size: of all files, in bytes; None when nothing was kept.
        changed, decisions: changed decisions of how many; None when it was not verified.
        delegated, fallback: nodes that the target's fast path took, and ops (with their counts) that it left.
    """

    model: str
    target: str
    precision: str
    status: str
    intact: bool = True
    key: str = ""
    sha256: str = ""
    size: int | None = None
    metric: Metric | None = None
    changed: int | None = None
    decisions: int | None = None
    near_ties: int | None = None
    snr_db: float | None = None
    delegated: int | None = None
    fallback: Mapping[str, int] = field(default_factory=dict)
    coverage_method: str = ""
    runtime: str = ""
    toolchain: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: str = ""
    error_code: str = ""
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether it may ship as far as the build is concerned."""
        return self.intact and self.status in ("ok", "ok-undelegated")

    @property
    def label(self) -> str:
        """``litert int8-static``."""
        return f"{self.target} {self.precision}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All repeats of one artifact at one setting on one device, in the newest run that has them.

    Attributes:
        samples_ns: of each repeat, in the order in which they were taken.
        p50_ms, p95_ms, peak_mb: the largest of the repeats', as verdicts use them.
        per_second: examples per second over the whole timed loop, the smallest of the repeats'; None: not said.
        repeats, wanted: taken and asked for.
        stale: the bytes that were measured are not those that lie in the output folder now.
        host: how outputs compare with this host's run of the same artifact.
    """

    device: str
    run: str
    started: str
    threads: int
    batch: int | None
    variant: str
    bytes: int
    statistics: tuple[Statistics, ...]
    samples_ns: tuple[tuple[int, ...], ...]
    p50_ms: float | None
    p95_ms: float | None
    peak_mb: float | None
    per_second: float | None
    load_ms: float | None
    first_ms: float | None
    repeats: int
    wanted: int
    emulated: bool
    stale: bool
    metric: Metric | None
    changed: int | None
    decisions: int | None
    host: str
    runtime: str
    files: tuple[str, ...]

    @property
    def setting(self) -> str:
        """``wasm, 4 threads, batch 8``; what is usual is left out."""
        parts = [self.variant, f"{self.threads} threads" if self.threads != 1 else ""]
        parts += [f"batch {self.batch}" if self.batch is not None else ""]
        return ", ".join(p for p in parts if p)

    @property
    def samples(self) -> int:
        """How many, over all repeats."""
        return sum(map(len, self.samples_ns))


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of a budget: ``p95_ms``, the limit, what the artifact has, and the verdict."""

    name: str
    allowed: float
    value: float | None
    verdict: Word


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the decision table.

    Attributes:
        build, measured: None when it is not in the output folder; when it was measured nowhere.
        verdict: None when no budget applies.
        fails: why it is FAIL: limits that are broken, a build that failed, outputs that are wrong.
        doubts: why a limit cannot be judged: its figures do not count, or are not known.
        wrong: those of ``fails`` that say that outputs are wrong.
        notes: what is wrong with figures that no limit is about; they have no part in the verdict.
        times_sure: measured in full, and nothing speaks against its times (noise, a charger, other bytes).
        times_count: sure, and at the model's own batch: they may be ranked and judged by its budget.
    """

    model: str
    target: str
    precision: str
    build: Build | None
    measured: Measured | None
    limits: tuple[Limit, ...]
    verdict: Word | None
    fails: tuple[str, ...]
    doubts: tuple[str, ...]
    wrong: tuple[str, ...]
    notes: tuple[str, ...] = ()
    times_sure: bool = False
    times_count: bool = False

    @property
    def reasons(self) -> tuple[str, ...]:
        """All of them, the worst first."""
        return self.fails + self.doubts

    @property
    def label(self) -> str:
        """``litert int8-static, 4 threads``."""
        setting = self.measured.setting if self.measured else ""
        return f"{self.target} {self.precision}" + (f", {setting}" if setting else "")

    @property
    def metric(self) -> Metric | None:
        """Measured on the device where it was, else on the build host; never of other bytes."""
        if self.measured is not None and (self.measured.metric is not None or self.measured.stale):
            return self.measured.metric
        return None if self.build is None else self.build.metric

    @property
    def changed(self) -> int | None:
        """Changed decisions, from where the metric is, and below out of how many."""
        if self.measured is not None and (self.measured.changed is not None or self.measured.stale):
            return self.measured.changed
        return None if self.build is None else self.build.changed

    @property
    def decisions(self) -> int | None:
        """Out of how many."""
        if self.measured is not None and (self.measured.decisions is not None or self.measured.stale):
            return self.measured.decisions
        return None if self.build is None else self.build.decisions

    @property
    def size(self) -> int | None:
        """All files of the artifact; of a measured one that is not built here, the file that ran."""
        if self.build is not None and not (self.measured is not None and self.measured.stale):
            return self.build.size
        return None if self.measured is None else self.measured.bytes

    @property
    def emulated(self) -> bool:
        """Whether times mean nothing."""
        return self.measured is not None and self.measured.emulated


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A device before and after one measurement: °C, and the fastest core's clock in MHz. None: it does not say."""

    label: str
    started: str
    celsius_before: float | None
    celsius_after: float | None
    mhz_before: float | None
    mhz_after: float | None


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """One artifact under load for long (``--sustained``), and what it came to."""

    model: str
    label: str
    samples_ns: tuple[int, ...]
    found: Sustained


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device: what it says of itself, and how it was doing.

    Attributes:
        facts: (what, value) for people, what is not known left out.
        conditions: the same for governors, charging, battery, load, temperature gate.
        moments: in the order of measuring.
        rows: of the decision table, measured here.
        long_runs: measured here.
    """

    name: str
    kind: str
    emulated: bool
    why_emulated: str
    facts: tuple[tuple[str, str], ...]
    conditions: tuple[tuple[str, str], ...]
    moments: tuple[Moment, ...]
    rows: tuple[Row, ...]
    long_runs: tuple[LongRun, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is not as one would wish, and everything that it applies to."""

    kind: Kind
    message: str
    remedy: str
    what: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A file that was not read, and why."""

    path: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A package and where it was used: ``executorch`` (the target, or a device), with its versions."""

    where: str
    package: str
    versions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that is shown. Models, targets, precisions and devices are in the order of showing.

    Attributes:
        runs: those whose measurements are shown; ``first``, ``last``: when these started, empty without any.
        taken: measurements that are shown, and ``failed`` of the same runs.
    """

    models: tuple[str, ...]
    targets: tuple[str, ...]
    precisions: tuple[str, ...]
    builds: tuple[Build, ...]
    rows: tuple[Row, ...]
    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    toolchains: tuple[Toolchain, ...]
    runs: tuple[str, ...]
    first: str
    last: str
    taken: int
    failed: int

    def verdicts(self) -> dict[str, int]:
        """How many rows have which verdict; ``none``: no budget applies."""
        words = [row.verdict or "none" for row in self.rows]
        return {w: words.count(w) for w in ("PASS", "FAIL", "INCONCLUSIVE", "none")}
