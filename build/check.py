"""``nox -s check``: every built artifact against every budget, which one to ship, and what stops the others.

Reads manifests (and measurements, where there are any); builds nothing.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build import envs, manifest
from build.budgets import LIMITS, Judged, Verdict, from_mapping, judge, overall, read_budgets
from build.cache import write_atomic
from build.driver import CAPTURE_GROUP
from build.entry import main, run_session
from build.errors import GateError, InputError
from build.log import say
from build.options import DEFAULT_OUT, Options
from build.plan import QUANTIZED_AS, outdated, program_folder
from build.record import ProgramRecord, read_record
from build.sources import Source, sources
from build.summary import size_text
from device_bench.lookup import newest_figures
from models.spec import Budget
from targets.precisions import PRECISIONS
from targets.registry import TargetFacts, platforms, select

SCHEMA_VERSION = 1
NOT_BUILT, UNAVAILABLE = "not built", "unavailable"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One artifact that could ship under a budget.

    Attributes:
        status: the manifest's; ``not built`` when there is none, ``unavailable`` when there can be none.
        verdict: FAIL also when the artifact is not ok, INCONCLUSIVE when it is stale or not built.
    """

    target: str
    precision: str
    status: str
    size: int
    limits: tuple[Judged, ...]
    verdict: Verdict
    why: str = ""

    @property
    def p95_ms(self) -> float:
        """Measured latency; infinity without one."""
        return next((j.value for j in self.limits if j.limit == "p95_ms" and j.value is not None), float("inf"))


@dataclass(frozen=True, kw_only=True)
class Section:
    """One budget of one model on one platform, and its candidates."""

    model: str
    platform: str
    budget: Budget
    candidates: tuple[Candidate, ...]
    choose: str

    @property
    def ship(self) -> Candidate | None:
        """The smallest candidate that passes (or the fastest); None when none passes."""
        good = [c for c in self.candidates if c.verdict == "PASS"]
        key = (lambda c: (c.p95_ms, c.size)) if self.choose == "fastest" else (lambda c: (c.size, c.p95_ms))
        return min(good, key=key, default=None)


def sections(options: Options) -> list[Section]:
    """Every budget that applies to the options' models and targets.

    Raises:
        InputError: an unknown target, a model that was never built, or no budget at all.
    """
    given = read_budgets(options.budgets) if options.budgets else None
    facts = {t.name: t for t in select(options.targets)}
    environment = envs.ready(CAPTURE_GROUP)
    found = []
    for source in sources(options, environment.packages if environment else {}):
        folder = program_folder(options.out, source)
        if not folder.is_dir():
            raise InputError(
                f"'{source.name}' is not built below '{options.out.name}'",
                remedy=_how_to_build(source, options),
            )
        record = read_record(folder)
        stale = environment is not None and record.key != source.job["key"]
        if environment is None or source.key is None:
            say(f"{source.name}: whether it changed since it was captured cannot be told here; a build tells")
        budgets = given if given is not None else _own(record)
        if stale and not budgets:
            raise InputError(
                f"'{source.name}' states no budget, but it is not what was captured: it may state some now",
                remedy=_how_to_build(source, options),
            )
        for budget in budgets:
            if budget.platform == "local":
                say(f"{source.name}: a budget for 'local' is not judged here: bench-local judges it")
            for platform, targets in platforms().items():
                mine = [facts[t] for t in targets if t in facts]
                if mine and budget.platform in ("*", platform):
                    candidates = _candidates(options, record, mine, budget, platform, stale=stale)
                    found.append(
                        Section(
                            model=record.name,
                            platform=platform,
                            budget=budget,
                            candidates=tuple(candidates),
                            choose=options.choose,
                        )
                    )
    if not found:
        raise InputError(
            "no budget applies to these models and targets",
            remedy="Give --budgets FILE.toml with [[budget]] tables, or state `budgets` in the model's spec.",
        )
    return found


def _how_to_build(source: Source, options: Options) -> str:
    """The command that builds a source, in the words that named it here."""
    job = source.job
    what = {"model": source.name, "program": job.get("path"), "module": f"{job.get('path')}:{job.get('factory')}"}
    words = [f"--{job['kind']}", str(what[job["kind"]])]
    for option, path in (("--data", options.data), ("--calibration", options.calibration)):
        words += [option, str(path)] if path is not None else []
    words += ["--out", str(options.out)] if options.out != Path(DEFAULT_OUT).resolve() else []
    return f"nox -s build -- {shlex.join([*words, '--precisions', 'all'])}"


def _own(record: ProgramRecord) -> list[Budget]:
    return [from_mapping(b, f"model '{record.name}'") for b in record.budgets]


def _candidates(
    options: Options,
    record: ProgramRecord,
    targets: Sequence[TargetFacts],
    budget: Budget,
    platform: str,
    *,
    stale: bool,
) -> list[Candidate]:
    """Every cell that was asked for; by default every one that is there."""
    default = options.precisions_given == "default"
    found = []
    for target in targets:
        for precision in PRECISIONS if default else options.precisions:
            folder = options.out / record.name / target.name / precision
            value = manifest.read(folder)
            if value is not None:
                limits = judge(budget, value, _measured(options, value, platform, budget.device_class))
                found.append(_judged(folder, value, record, target, tuple(limits), stale=stale))
            elif not default or folder.is_dir():  # a manifest that cannot be read is none
                found.append(_absent(record, target, precision, budget))
    return found


def _judged(
    folder: Path,
    value: Mapping[str, Any],
    record: ProgramRecord,
    target: TargetFacts,
    limits: tuple[Judged, ...],
    *,
    stale: bool,
) -> Candidate:
    old = "the program is not what these sources, data, options, packages and this code give" if stale else None
    verdict: Verdict = "FAIL"
    if value["program"] != record.sha256:
        why = "made from another program: build again"
    elif value["status"] not in manifest.OK:
        why = f"{value['status']}: {(value['error'] or {}).get('message', value['status'])}"
    elif not manifest.intact(folder, value):
        why = "its files are not those of its manifest"
    elif old := old or outdated(value, record, target):
        why, verdict = f"stale: {old}: build again", "INCONCLUSIVE"
    else:
        why, verdict = "", overall(limits)
    return Candidate(
        target=target.name,
        precision=value["precision"],
        status=value["status"],
        size=value["bytes"],
        limits=limits,
        verdict=verdict,
        why=why,
    )


def _absent(record: ProgramRecord, target: TargetFacts, precision: str, budget: Budget) -> Candidate:
    """A cell without an artifact: not known, and never passed over."""
    reason = target.unavailable(precision)
    if record.quantized and precision != QUANTIZED_AS:
        reason = f"the program is quantised already: {QUANTIZED_AS} is what it has"
    why = NOT_BUILT if reason is None else f"{UNAVAILABLE}: {reason}"
    limits = [(name, getattr(budget, name)) for name in LIMITS]
    return Candidate(
        target=target.name,
        precision=precision,
        status=NOT_BUILT if reason is None else UNAVAILABLE,
        size=0,
        limits=tuple(
            Judged(limit=name, allowed=float(allowed), value=None, verdict="INCONCLUSIVE", why=why)
            for name, allowed in limits
            if allowed is not None
        ),
        verdict="INCONCLUSIVE",
        why=why,
    )


def _measured(
    options: Options, value: Mapping[str, Any], platform: str, device_class: str
) -> Mapping[str, float | None] | None:
    """What a device lab measured of these very bytes, where it did."""
    sha256 = manifest.identity(value)
    if not sha256:
        return None
    return newest_figures(options.results, artifact_sha256=sha256, platform=platform, device_class=device_class)


def text(found: Sequence[Section]) -> str:
    """The tables for people."""
    return "\n\n".join(_table(s) for s in found)


def _table(section: Section) -> str:
    columns = [name for name in LIMITS if getattr(section.budget, name) is not None]
    rows = [("target", "precision", "size", *(f"{n} {_limit(n, section.budget)}" for n in columns), "verdict")]
    for c in section.candidates:
        judged = {j.limit: j for j in c.limits}
        rows.append((c.target, c.precision, size_text(c.size) if c.size else "-",
                     *(_cell(judged[n]) for n in columns), c.verdict))  # fmt: skip
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    device = "" if section.budget.device_class == "*" else f", {section.budget.device_class} devices"
    lines.insert(0, f"{section.model} on {section.platform}{device}")
    reasons = dict.fromkeys(c.why for c in section.candidates if c.why)
    lines += [f"{', '.join(_labels(section, why))}: {why}" for why in reasons]
    ship = section.ship
    if ship is not None:
        lines.append(f"ship: {ship.target} {ship.precision} (the {section.choose} that passes)")
        return "\n".join(lines)
    built = [c for c in section.candidates if c.status not in (NOT_BUILT, UNAVAILABLE)]
    lines.append("ship: none passes" if built else "ship: nothing is built for this platform")
    for c in built:
        stops = [f"{j.limit} {j.verdict}{f' ({j.why})' if j.why else ''}" for j in c.limits if j.verdict != "PASS"]
        if stops:
            lines.append(f"  {c.target} {c.precision} is stopped by {', '.join(stops)}")
    return "\n".join(lines)


def _labels(section: Section, why: str) -> list[str]:
    return [f"{c.target} {c.precision}" for c in section.candidates if c.why == why]


def _limit(name: str, budget: Budget) -> str:
    value = getattr(budget, name)
    if name == "max_bytes":
        return f"<= {size_text(value)}"
    return f"{'>=' if name == 'min_metric' else '<='} {value:g}"


def _cell(j: Judged) -> str:
    if j.value is None:
        return j.verdict
    return f"{size_text(int(j.value)) if j.limit == 'max_bytes' else f'{j.value:.4g}'} {j.verdict}"


def to_json(found: Sequence[Section]) -> dict[str, Any]:
    """``{"schema_version", "sections": [{"model", "platform", "budget", "ship", "candidates"}]}``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "sections": [
            {
                "model": s.model,
                "platform": s.platform,
                "budget": asdict(s.budget),
                "ship": None if s.ship is None else {"target": s.ship.target, "precision": s.ship.precision},
                "candidates": [asdict(c) for c in s.candidates],
            }
            for s in found
        ],
    }


def check(options: Options) -> int:
    """Print the tables; write ``--json``.

    Returns:
        0 when every budget has an artifact to ship, else the exit code of a gate that was not met.
    """
    found = sections(options)
    print(text(found), flush=True)
    if options.json is not None:
        write_atomic(options.json, manifest.json_text(to_json(found)) + "\n")
    return 0 if all(s.ship for s in found) else GateError.exit_code


def session(argv: Sequence[str]) -> int:
    """The ``check`` session."""
    return run_session("check", argv, check, empty={"sections": []})


if __name__ == "__main__":
    main(lambda: session(sys.argv[1:]))
