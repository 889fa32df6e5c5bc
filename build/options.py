"""The options after ``--``: the same for every session that builds. Standard library only."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from build.errors import InputError

DEFAULT_MODEL = "digits_cnn"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for. Paths are absolute."""

    models: tuple[str, ...]
    programs: tuple[Path, ...]
    modules: tuple[str, ...]
    data: Path | None
    targets: tuple[str, ...]
    precisions: tuple[str, ...]
    out: Path
    jobs: int
    dry_run: bool
    json: Path | None
    force: bool
    strict: bool
    min_delegated: float | None
    trust: bool
    debug: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message, remedy="Run with -- --help to see the options.")


def parser(session: str, default_targets: tuple[str, ...]) -> argparse.ArgumentParser:
    """The parser of one session; ``--help`` prints it."""
    p = _Parser(prog=f"nox -s {session} --", formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    what = p.add_argument_group("what to build")
    what.add_argument("--model", action="append", metavar="NAME", help="a model of models/ (repeatable)")
    what.add_argument("--program", action="append", metavar="FILE.pt2", help="a saved program, or a folder of them")
    what.add_argument("--module", action="append", metavar="FILE.py:FACTORY", help="a module that is not in models/")
    what.add_argument("--data", metavar="FILE.safetensors", help="calls for --program: tensor CALL/INPUT, CALL/label")
    what.add_argument("--targets", metavar="T,T", default=",".join(default_targets), help="comma-separated")
    what.add_argument("--precisions", metavar="P,P", default="fp32", help="comma-separated")
    how = p.add_argument_group("how")
    how.add_argument("--out", metavar="DIR", default="out", help="where everything generated goes")
    how.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count() or 1, help="targets built at once")
    how.add_argument("--dry-run", action="store_true", help="say what would be built, and build nothing")
    how.add_argument("--force", action="store_true", help="build even what is unchanged")
    how.add_argument("--json", metavar="FILE", help="write the summary as JSON, also when something failed")
    gates = p.add_argument_group("gates and trust")
    gates.add_argument("--strict", action="store_true", help="fail on a narrowed range or any other warning")
    gates.add_argument("--min-delegated", type=float, metavar="PCT", help="fail when fewer nodes are delegated")
    gates.add_argument("--trust", action="store_true", help="unpickle objects in a .pt2: RUNS CODE that the file holds")
    gates.add_argument("--debug", action="store_true", help="show tracebacks")
    return p


def parse(session: str, default_targets: tuple[str, ...], argv: list[str]) -> Options:
    """Parse and check.

    Raises:
        InputError: unknown options, paths that do not exist, values out of range.
    """
    raw = parser(session, default_targets).parse_args(argv)
    if raw.jobs < 1:
        raise InputError(f"--jobs {raw.jobs}: needs at least 1")
    if raw.min_delegated is not None and not 0 <= raw.min_delegated <= 100:
        raise InputError(f"--min-delegated {raw.min_delegated}: a percentage from 0 to 100")
    programs = tuple(file for name in raw.program or () for file in _programs(name))
    data = Path(raw.data).resolve() if raw.data else None
    if data is not None and len(programs) != 1:
        raise InputError(
            "--data goes with exactly one --program", remedy="Or put FILE.safetensors beside each FILE.pt2."
        )
    if data is not None and not data.is_file():
        raise InputError(f"--data {raw.data}: no such file")
    models = tuple(dict.fromkeys(raw.model or ()))
    if not models and not programs and not raw.module:
        models = (DEFAULT_MODEL,)
    return Options(
        models=models,
        programs=programs,
        modules=tuple(raw.module or ()),
        data=data,
        targets=_words(raw.targets, "--targets"),
        precisions=_words(raw.precisions, "--precisions"),
        out=Path(raw.out).resolve(),
        jobs=raw.jobs,
        dry_run=raw.dry_run,
        json=Path(raw.json).resolve() if raw.json else None,
        force=raw.force,
        strict=raw.strict,
        min_delegated=raw.min_delegated,
        trust=raw.trust,
        debug=raw.debug,
    )


def _words(text: str, option: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
    if not words:
        raise InputError(f"{option} names nothing")
    return words


def _programs(name: str) -> list[Path]:
    path = Path(name).resolve()
    if path.is_dir():
        files = sorted(path.glob("*.pt2"))
        if not files:
            raise InputError(f"--program {name}: no .pt2 file in this folder")
        return files
    if not path.is_file():
        raise InputError(f"--program {name}: no such file")
    return [path]
