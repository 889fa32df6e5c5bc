"""The options after ``--``: the same for every session that builds. Standard library only."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from build.errors import EdgeportError, InputError, StorageError
from targets.precisions import PRECISIONS, precision

DEFAULT_MODEL = "digits_cnn"
DEFAULT_OUT = "out"
#: names the sessions of one nox command, separated by spaces
SESSIONS = "EDGEPORT_SESSIONS"
_BUILDS = ("keep_float", "auto_mixed", "max_metric_drop", "strict", "min_delegated", "force", "dry_run")
_JUDGES = ("budgets", "results", "choose")
#: What a session would read and not use: whoever gives it expects it to count. ``--jobs`` and ``--trust`` say how to
#: work, not what is wanted, and ``--data`` and ``--calibration`` name a source: sessions of one command share them.
_UNUSED = {
    "build": _JUDGES,
    "check": _BUILDS,
    "blame": ("auto_mixed", "max_metric_drop", "strict", "min_delegated", *_JUDGES),
    "preflight": ("precisions", "calibration", *_BUILDS, *_JUDGES),
    "bundle": _BUILDS,
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for. Paths are absolute.

    Attributes:
        precisions_given: whether the user named precisions, said ``all``, or left it to us.
    """

    models: tuple[str, ...]
    programs: tuple[Path, ...]
    modules: tuple[str, ...]
    data: Path | None
    calibration: Path | None
    targets: tuple[str, ...]
    precisions: tuple[str, ...]
    precisions_given: Literal["default", "named", "all"]
    keep_float: tuple[str, ...]
    auto_mixed: bool
    max_metric_drop: float | None
    budgets: Path | None
    choose: str
    results: Path
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
    what.add_argument("--targets", "--target", metavar="T,T", default=",".join(default_targets), help="comma-separated")
    what.add_argument(
        "--calibration", metavar="FILE.safetensors", help="calls to calibrate with, in place of the model's own"
    )
    what.add_argument("--precisions", "--precision", metavar="P,P", help="comma-separated, or all (default: fp32)")
    mixed = p.add_argument_group("mixed precision")
    mixed.add_argument("--keep-float", nargs="+", action="extend", metavar="NODE", help="keep nodes in float")
    mixed.add_argument("--auto-mixed", action="store_true", help="find a small set of nodes to keep in float")
    mixed.add_argument("--max-metric-drop", type=float, metavar="X", help="largest loss of the metric, as a gate")
    how = p.add_argument_group("how")
    how.add_argument("--out", metavar="DIR", default=DEFAULT_OUT, help="where everything generated goes")
    how.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count() or 1, help="targets built at once")
    how.add_argument("--dry-run", action="store_true", help="say what would be built, and build nothing")
    how.add_argument("--force", action="store_true", help="build even what is unchanged")
    how.add_argument("--json", metavar="FILE", help="write the summary as JSON, also when something failed")
    gates = p.add_argument_group("gates and trust")
    gates.add_argument("--strict", action="store_true", help="fail on a narrowed range or any other warning")
    gates.add_argument("--min-delegated", type=float, metavar="PCT", help="fail when fewer nodes are delegated")
    gates.add_argument("--budgets", metavar="FILE.toml", help="limits, in place of the model's own (session check)")
    gates.add_argument("--results", metavar="DIR", default="results", help="measurements that check judges by")
    gates.add_argument("--choose", choices=("smallest", "fastest"), default="smallest", help="what check ships")
    gates.add_argument("--trust", action="store_true", help="unpickle objects in a .pt2: RUNS CODE that the file holds")
    gates.add_argument("--debug", action="store_true", help="show tracebacks")
    for action in p._actions:
        if action.dest in _UNUSED.get(session.split("-")[0], ()):
            action.help = argparse.SUPPRESS
    return p


def parse(session: str, default_targets: tuple[str, ...], argv: list[str]) -> Options:
    """Parse and check.

    Raises:
        InputError: unknown options, paths that do not exist, values out of range.
        StorageError: what is to be written has no place to go.
    """
    made = parser(session, default_targets)
    raw = made.parse_args(argv)
    _refuse_empty(raw)
    _refuse_unused(session, raw, made)
    if raw.jobs < 1:
        raise InputError(f"--jobs {raw.jobs}: needs at least 1")
    if raw.min_delegated is not None and not 0 <= raw.min_delegated <= 100:
        raise InputError(f"--min-delegated {raw.min_delegated}: a percentage from 0 to 100")
    programs = tuple(dict.fromkeys(file for name in raw.program or () for file in _programs(name)))
    if raw.data is not None and len(programs) != 1:
        raise InputError(
            "--data goes with exactly one --program", remedy="Or put FILE.safetensors beside each FILE.pt2."
        )
    data = _file(raw.data, "--data")
    calibration = _file(raw.calibration, "--calibration")
    if calibration is not None and len(programs) + len(raw.model or ()) + len(raw.module or ()) > 1:
        raise InputError("--calibration goes with exactly one model, program or module")
    if raw.max_metric_drop is not None and not 0 <= raw.max_metric_drop <= 1:
        raise InputError(f"--max-metric-drop {raw.max_metric_drop}: a share from 0 to 1")
    given, precisions = _precisions(raw.precisions)
    if calibration is not None and given == "default" and session.split("-")[0] in ("build", "blame"):
        raise InputError(
            f"--calibration {raw.calibration}: {precisions[0]}, the default, is not calibrated",
            remedy=f"Name what is: --precisions {', '.join(p.name for p in PRECISIONS.values() if p.calibrated)}.",
        )
    models = tuple(dict.fromkeys(raw.model or ()))
    if not models and not programs and not raw.module:
        models = (DEFAULT_MODEL,)
    return Options(
        models=models,
        programs=programs,
        modules=tuple(raw.module or ()),
        data=data,
        targets=_words(raw.targets, "--targets"),
        calibration=calibration,
        precisions=precisions,
        precisions_given=given,
        keep_float=tuple(dict.fromkeys(n for text in raw.keep_float or () for n in text.split(",") if n)),
        auto_mixed=raw.auto_mixed,
        max_metric_drop=raw.max_metric_drop,
        choose=raw.choose,
        results=_path(raw.results, "--results"),
        budgets=_file(raw.budgets, "--budgets"),
        out=_folder_to_write(raw.out, "--out"),
        jobs=raw.jobs,
        dry_run=raw.dry_run,
        json=file_to_write(raw.json, "--json", out=raw.out),
        force=raw.force,
        strict=raw.strict,
        min_delegated=raw.min_delegated,
        trust=raw.trust,
        debug=raw.debug,
    )


def _refuse_empty(raw: argparse.Namespace) -> None:
    """An empty word would stand for the current folder, or for nothing at all: never what was meant."""
    for name, value in vars(raw).items():
        if value == "" or (isinstance(value, list) and "" in value):
            raise InputError(
                f"--{name.replace('_', '-')} is empty",
                remedy="Is a variable of the shell not set? Leave it out or name it.",
            )


def _refuse_unused(session: str, raw: argparse.Namespace, made: argparse.ArgumentParser) -> None:
    # nox hands the options of `nox -s build check -- --budgets b.toml` to both: one that uses them is enough.
    named = {s.split("-")[0] for s in os.environ.get(SESSIONS, "").split()}
    unused = _UNUSED.get(session.split("-")[0], ())
    for name in unused:
        users = [s for s, not_used in _UNUSED.items() if name not in not_used]
        if getattr(raw, name) != made.get_default(name) and not named.intersection(users):
            others = ", ".join(users)
            raise InputError(
                f"--{name.replace('_', '-')} has no meaning in session {session}",
                remedy=f"Leave it out, or give it to {others}.",
            )


def file_to_write(name: str | None, option: str, *, out: str | None = None) -> Path | None:
    """Where a file is to go, asked before anything is done for it.

    Args:
        out: a folder that the work itself will make; it need not be there yet.

    Raises:
        InputError: a folder, a device, or a place below a file.
        StorageError: it may not be written there.
    """
    if name is None:
        return None
    try:
        path = Path(name).resolve()
        if path.is_dir() or name.endswith("/") or (out is not None and path == Path(out).resolve()):
            raise InputError(f"{option} {name}: this is a folder", remedy="Name the file to write.")
        if path.exists() and not path.is_file():
            raise InputError(f"{option} {name}: this is no plain file", remedy="Name the file to write.")
        there = next(p for p in path.parents if p.exists())
        if not there.is_dir():
            raise InputError(f"{option} {name}: '{there}' is a file, not a folder", remedy="Name another folder.")
    except (OSError, RuntimeError) as error:  # too long a name, a folder that may not be looked into, links in a circle
        raise StorageError(f"{option} {name}: cannot be written: {_reason(error)}") from error
    if not os.access(there, os.W_OK):
        raise StorageError(f"{option} {name}: '{there}' cannot be written", remedy="Name another folder.")
    return path


def _folder_to_write(name: str, option: str) -> Path:
    """Need not be writable: sessions that only read take it too."""
    path = _path(name, option)
    with readable(f"{option} {name}"):
        if path.exists() and not path.is_dir():
            raise InputError(f"{option} {name}: this is a file", remedy="Name a folder.")
    return path


def _file(name: str | None, option: str) -> Path | None:
    if name is None:
        return None
    path = _path(name, option)
    with readable(f"{option} {name}"):
        if not path.is_file():
            raise InputError(f"{option} {name}: no such file")
    return path


def _path(name: str, option: str) -> Path:
    with readable(f"{option} {name}"):
        return Path(name).resolve()


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Looking at what the user named; what the system says against it is one clear line.

    Raises:
        InputError: too long a name, a file or folder that may not be looked into, links in a circle.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise InputError(f"{what}: cannot be read: {_reason(error)}") from error


def _reason(error: OSError | RuntimeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def json_of(argv: Sequence[str]) -> Path | None:
    """The file that ``--json`` names, whatever is wrong with the other options; None where it can't be written."""
    p = _Parser(add_help=False, allow_abbrev=False)
    p.add_argument("--json")
    p.add_argument("--out", default=DEFAULT_OUT)
    try:
        raw, _ = p.parse_known_args(list(argv))
        return file_to_write(raw.json, "--json", out=raw.out)
    except EdgeportError:
        return None


def _precisions(text: str | None) -> tuple[Literal["default", "named", "all"], tuple[str, ...]]:
    if text is None:
        return "default", ("fp32",)
    words = _words(text, "--precisions")
    if words == ("all",):
        return "all", tuple(PRECISIONS)
    return "named", tuple(precision(w).name for w in words)


def _words(text: str, option: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
    if not words:
        raise InputError(f"{option} names nothing")
    return words


def _programs(name: str) -> list[Path]:
    path = _path(name, "--program")
    with readable(f"--program {name}"):
        if not path.is_dir():
            if not path.is_file():
                raise InputError(f"--program {name}: no such file")
            return [path]
        files = sorted(path.glob("*.pt2"))
        if not files:
            raise InputError(f"--program {name}: no .pt2 file in this folder")
    return files
