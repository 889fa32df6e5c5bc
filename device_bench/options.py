"""The options after ``--`` of the sessions that measure. Standard library only."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from build.errors import InputError
from build.options import file_to_write
from device_bench import platforms
from device_bench.contract import Platform
from device_bench.job import Settings
from device_bench.points import MOST_THREADS, Point, read_sweep
from device_bench.verdict import Rules
from targets.precisions import PRECISIONS

DEFAULT_MODEL = "digits_cnn"


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """What the user asked for. Paths are absolute.

    Attributes:
        points: the settings under which every artifact is measured: one, or a sweep.
        keep_p95_ms: of a sweep: the p95 that the largest batch is looked for under.
        sustained: minutes of one long loop, in place of repeats; None: no.
        own: the platform's own options.
    """

    session: str
    serials: tuple[str, ...]
    own: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...]
    targets: tuple[str, ...]
    precisions: tuple[str, ...]
    repeats: int
    seed: int | None
    resume: bool
    settings: Settings
    points: tuple[Point, ...]
    keep_p95_ms: float | None
    sustained: float | None
    cool_down: float
    max_celsius: float | None
    wait: float
    timeout: float | None
    retries: int
    out: Path
    results: Path
    budgets: Path | None
    device_class: str
    rules: Rules
    require_pass: bool
    json: Path | None
    debug: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message, remedy="Run with -- --help to see the options.")


def parser(session: str) -> argparse.ArgumentParser:
    """The parser of one session; ``--help`` prints it."""
    platform = platforms.load(session)
    p = _Parser(prog=f"nox -s {session} --", formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    platform.add_options(p.add_argument_group("where"))
    what = p.add_argument_group("what to measure")
    what.add_argument("--model", action="append", metavar="NAME", help="as it is called in the output folder")
    what.add_argument("--targets", metavar="T,T", default=",".join(platform.TARGETS), help="comma-separated")
    what.add_argument("--precisions", metavar="P,P", default="fp32", help="comma-separated")
    what.add_argument("--out", metavar="DIR", default="out", help="where the build put its artifacts")
    how = p.add_argument_group("how to measure")
    defaults = Settings()
    how.add_argument("--repeats", type=int, default=3, metavar="N", help="cold starts of each")
    how.add_argument("--threads", type=int, default=defaults.threads, metavar="N")
    how.add_argument("--affinity", metavar="CPU,CPU", default="", help="pin the harness to these CPUs")
    how.add_argument("--batch", type=int, metavar="N", help="batch of the timed call, where it is dynamic")
    if platform.VARIANTS != ("",):
        words = f"of {', '.join(platform.VARIANTS)}; {every_word(platform.VARIANTS)}: each of them"
        how.add_argument("--variants", metavar="V,V", default=platform.VARIANTS[0], help=words)
    how.add_argument("--sweep", nargs="+", default=[], metavar="NAME=N,N", help="batch=1,4,16 threads=1,2: each point")
    how.add_argument("--keep-p95", type=float, metavar="MS", help="name the largest batch of a sweep that keeps it")
    how.add_argument("--sustained", type=float, metavar="MINUTES", help="one long loop in place of the repeats")
    how.add_argument("--warmup-runs", type=int, default=defaults.warmup_runs, metavar="N")
    how.add_argument("--warmup-seconds", type=float, default=defaults.warmup_seconds, metavar="S")
    how.add_argument("--min-runs", type=int, default=defaults.min_runs, metavar="N")
    how.add_argument("--min-seconds", type=float, default=defaults.min_seconds, metavar="S")
    how.add_argument("--max-seconds", type=float, default=defaults.max_seconds, metavar="S", help="of the timed loop")
    how.add_argument("--seed", type=int, metavar="N", help="of the order; a fresh one without it")
    how.add_argument("--cool-down", type=float, default=300.0, metavar="S", help="longest wait at the temperature gate")
    how.add_argument("--max-celsius", type=float, metavar="C", help="where the gate opens (battery: 38, else 60)")
    how.add_argument("--wait", type=float, default=120.0, metavar="S", help="for a lost device to come back")
    how.add_argument("--retries", type=int, default=2, metavar="N", help="after a lost connection or a rejected result")
    how.add_argument("--timeout", type=float, metavar="S", help="for one run of the harness")
    result = p.add_argument_group("results")
    result.add_argument("--results", metavar="DIR", default="results", help="one folder per run below it")
    result.add_argument("--resume", action="store_true", help="continue the newest run: measure what it lacks")
    result.add_argument("--budgets", metavar="FILE.toml", help="limits, in place of the model's own")
    result.add_argument("--device-class", metavar="NAME", default="*", help="whose budgets apply")
    result.add_argument("--max-spread", type=float, default=Rules().max_spread, metavar="X", help="of the repeats' p95")
    result.add_argument("--allow-charging", action="store_true", help="a device on a charger may pass")
    result.add_argument("--require-pass", action="store_true", help="fail also when a verdict is INCONCLUSIVE")
    result.add_argument("--json", metavar="FILE", help="write the summary there too")
    result.add_argument("--debug", action="store_true", help="show tracebacks")
    return p


def parse(session: str, argv: list[str]) -> LabOptions:
    """Parse and check.

    Raises:
        InputError: unknown options or names, values out of range.
    """
    platform = platforms.load(session)
    raw = parser(session).parse_args(argv)
    for name, least in (("repeats", 1), ("threads", 1), ("min_runs", 1), ("warmup_runs", 0), ("retries", 0)):
        if getattr(raw, name) < least:
            raise InputError(f"--{name.replace('_', '-')} {getattr(raw, name)}: needs at least {least}")
    if raw.threads > MOST_THREADS:
        raise InputError(f"--threads {raw.threads}: at most {MOST_THREADS}")
    if raw.seed is not None and not 0 <= raw.seed < 2**63:
        raise InputError(f"--seed {raw.seed}: needs a number from 0 to 2**63 - 1")
    if raw.max_celsius is not None and not -100 < raw.max_celsius < 1000:
        raise InputError(f"--max-celsius {raw.max_celsius}: needs a temperature")
    for name in ("warmup_seconds", "min_seconds", "max_seconds", "cool_down", "wait", "max_spread"):
        if not getattr(raw, name) >= 0:
            raise InputError(f"--{name.replace('_', '-')} {getattr(raw, name)}: needs a number of 0 or more")
    if raw.max_seconds == 0 or (raw.timeout is not None and not raw.timeout > 0):
        raise InputError("--max-seconds and --timeout need more than 0")
    if raw.min_seconds > raw.max_seconds:
        raise InputError(f"--min-seconds {raw.min_seconds:g} is more than --max-seconds {raw.max_seconds:g}")
    if raw.batch is not None and raw.batch < 1:
        raise InputError(f"--batch {raw.batch}: needs at least 1")
    for name in ("keep_p95", "sustained"):
        if getattr(raw, name) is not None and not 0 < getattr(raw, name) < 1e6:
            raise InputError(f"--{name.replace('_', '-')} {getattr(raw, name)}: needs a number above 0")
    if raw.keep_p95 is not None and not any(word.startswith("batch=") for word in raw.sweep):
        raise InputError("--keep-p95 is about a sweep over batches", remedy="Add: --sweep batch=1,4,16")
    variants = _names(getattr(raw, "variants", ""), "variant", platform.VARIANTS)
    return LabOptions(
        session=session,
        serials=tuple(dict.fromkeys(getattr(raw, "serial", None) or ())),
        own=_own(platform, raw),
        models=tuple(dict.fromkeys(raw.model or (DEFAULT_MODEL,))),
        targets=_names(raw.targets, "target", platform.TARGETS),
        precisions=_names(raw.precisions, "precision", PRECISIONS),
        repeats=1 if raw.sustained else raw.repeats,
        seed=raw.seed,
        resume=raw.resume,
        settings=_settings(raw),
        points=read_sweep(raw.sweep, threads=raw.threads, batch=raw.batch, variants=variants),
        keep_p95_ms=raw.keep_p95,
        sustained=raw.sustained,
        cool_down=raw.cool_down,
        max_celsius=raw.max_celsius,
        wait=raw.wait,
        timeout=raw.timeout,
        retries=raw.retries,
        out=Path(raw.out).resolve(),
        results=Path(raw.results).resolve(),
        budgets=_file(raw.budgets, "--budgets"),
        device_class=raw.device_class,
        rules=Rules(max_spread=raw.max_spread, allow_charging=raw.allow_charging),
        require_pass=raw.require_pass,
        json=file_to_write(raw.json, "--json", out=raw.results),
        debug=raw.debug,
    )


def _settings(raw: argparse.Namespace) -> Settings:
    seconds = 60 * raw.sustained if raw.sustained else None
    return Settings(
        threads=raw.threads,
        affinity=_cpus(raw.affinity),
        warmup_runs=raw.warmup_runs,
        warmup_seconds=raw.warmup_seconds,
        min_runs=raw.min_runs,
        min_seconds=seconds or raw.min_seconds,
        max_seconds=seconds or raw.max_seconds,
        batch=raw.batch,
    )


def _own(platform: Platform, raw: argparse.Namespace) -> dict[str, Any]:
    """The values of the options that the platform added itself."""
    scratch = argparse.ArgumentParser(add_help=False)
    platform.add_options(scratch.add_argument_group())
    return {name: getattr(raw, name) for name in vars(scratch.parse_args([]))}


def _names(text: str, what: str, known: Iterable[str]) -> tuple[str, ...]:
    all_names = list(known)
    if all_names == [""]:
        return ("",)
    names = tuple(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
    every = every_word(all_names)
    if names == (every,):
        return tuple(all_names)
    for name in names:
        if name not in all_names:
            close = difflib.get_close_matches(name, all_names, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise InputError(f"no {what} is named '{name}'", remedy=f"Here: {', '.join(all_names)}, {every}.{hint}")
    if not names:
        raise InputError(f"--{what}s names nothing")
    return names


def every_word(names: Sequence[str]) -> str:
    """What asks for each of these: ``all``, where that is none of them itself (Core ML has a unit of that name)."""
    return "every" if "all" in names else "all"


def _cpus(text: str) -> tuple[int, ...]:
    words = [w.strip() for w in text.split(",") if w.strip()]
    if not all(w.isdigit() for w in words):
        raise InputError(f"--affinity {text}: numbers of CPUs, comma-separated")
    return tuple(int(w) for w in words)


def _file(name: str | None, option: str) -> Path | None:
    if name is None:
        return None
    path = Path(name).resolve()
    if not path.is_file():
        raise InputError(f"{option} {name}: no such file")
    return path
