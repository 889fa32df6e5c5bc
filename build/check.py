"""``nox -s check``: every built artifact against every budget, which one to ship, and what stops the others.

Reads manifests (and measurements, where there are any); builds nothing.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build import manifest
from build.budgets import LIMITS, Judged, Verdict, from_mapping, judge, overall, read_budgets
from build.cache import write_atomic
from build.entry import main, run_session
from build.errors import GateError, InputError
from build.options import DEFAULT_OUT, Options
from build.plan import program_folder
from build.record import ProgramRecord, read_record
from build.sources import Source, sources
from build.summary import size_text
from device_bench.lookup import newest_figures
from models.spec import Budget
from targets.precisions import PRECISIONS
from targets.registry import platforms

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One artifact that could ship under a budget.

    Attributes:
        status: the manifest's; ``not built`` when there is none.
        verdict: FAIL also when the artifact is not ok, INCONCLUSIVE when it is not built.
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
        InputError: a model that was never built, or no budget at all.
    """
    given = read_budgets(options.budgets) if options.budgets else None
    names = list(PRECISIONS) if options.precisions_given == "default" else list(options.precisions)
    found = []
    for source in sources(options, {}):
        folder = program_folder(options.out, source)
        if not folder.is_dir():
            raise InputError(
                f"'{source.name}' is not built below '{options.out.name}'",
                remedy=_how_to_build(source, options),
            )
        record = read_record(folder)
        for budget in given if given is not None else _own(record):
            for platform, targets in platforms().items():
                mine = [t for t in targets if t in options.targets]
                if mine and budget.platform in ("*", platform):
                    candidates = [
                        c for t in mine for p in names if (c := _candidate(options, record, t, p, budget, platform))
                    ]
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


def _candidate(
    options: Options, record: ProgramRecord, target: str, precision: str, budget: Budget, platform: str
) -> Candidate | None:
    folder = options.out / record.name / target / precision
    value = manifest.read(folder)
    if value is None:
        return None
    common = {"target": target, "precision": precision, "status": value["status"], "size": value["bytes"]}
    limits = tuple(judge(budget, value, _measured(options, value, platform, budget.device_class)))
    if value["program"] != record.sha256:
        return Candidate(**common, limits=limits, verdict="FAIL", why="made from another program: build again")
    if value["status"] not in manifest.OK:
        reason = (value["error"] or {}).get("message", value["status"])
        return Candidate(**common, limits=limits, verdict="FAIL", why=f"{value['status']}: {reason}")
    if not manifest.intact(folder, value):
        return Candidate(**common, limits=limits, verdict="FAIL", why="its files are not those of its manifest")
    return Candidate(**common, limits=limits, verdict=overall(limits))


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
    lines += [f"{c.target} {c.precision}: {c.why}" for c in section.candidates if c.why]
    ship = section.ship
    if ship is not None:
        lines.append(f"ship: {ship.target} {ship.precision} (the {section.choose} that passes)")
        return "\n".join(lines)
    lines.append("ship: none passes" if section.candidates else "ship: nothing is built for this platform")
    for c in section.candidates:
        stops = [f"{j.limit} {j.verdict}{f' ({j.why})' if j.why else ''}" for j in c.limits if j.verdict != "PASS"]
        if stops:
            lines.append(f"  {c.target} {c.precision} is stopped by {', '.join(stops)}")
    return "\n".join(lines)


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
        write_atomic(options.json, json.dumps(to_json(found), indent=1) + "\n")
    return 0 if all(s.ship for s in found) else GateError.exit_code


def session(argv: Sequence[str]) -> int:
    """The ``check`` session."""
    return run_session("check", argv, check)


if __name__ == "__main__":
    main(lambda: session(sys.argv[1:]))
