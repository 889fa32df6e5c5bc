"""``nox -s cases``: every public failing input on every target, beside what the bare converter does with it.

Ours are run now. The bare outcomes (see ``tests/cases/bare.py``) are kept in ``bare.json`` with the versions that they
were made with; ``--bare`` makes them anew.
Exit 1 when a case is quietly wrong, quietly narrowed, or ends in an error that is not clear, and when all of them were
run and fewer are correct than we aim at.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from build.cache import write_atomic
from build.errors import InputError
from build.log import fail
from targets.registry import all_targets, select
from tests.cases.run import GOOD, case_names

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
#: seconds
_TOLD_EVERY = 20.0
#: the share of the expressible cases that must be correct
_AIMS = {"coreml": 0.85, "litert": 0.85}
_AIM = 0.95
_BARE = _HERE / "bare.json"


def run_target(target: str, names: Sequence[str], *, bare: bool = False) -> list[dict[str, Any]]:
    """Run cases in a process of their own; a case that kills it is recorded as CRASH and the rest goes on."""
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="edgeport-cases-") as folder:
        while len(outcomes) < len(names):
            report = Path(folder) / "report.json"
            report.unlink(missing_ok=True)
            command = [sys.executable, "-W", "ignore", "-m", "tests.cases.run", "--target", target]
            command += ["--bare"] if bare else []
            rest = names[len(outcomes) :]
            with subprocess.Popen(
                [*command, "--json", str(report), "--exact", *rest],
                cwd=_ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                _follow(process, report, f"bare {target}" if bare else target, len(outcomes), len(names))
            outcomes += json.loads(report.read_text()) if report.exists() else []
            if len(outcomes) < len(names):
                lost = names[len(outcomes)]
                detail = f"the process died (exit code {process.returncode})"
                outcomes.append({"case": lost, "target": target, "status": "CRASH", "detail": detail, "seconds": 0.0})
    return outcomes


def _follow(process: subprocess.Popen[bytes], report: Path, target: str, before: int, total: int) -> None:
    """Say how far a process has come, until it ends."""
    while True:
        try:
            process.wait(_TOLD_EVERY)
        except subprocess.TimeoutExpired:
            done = before + (len(json.loads(report.read_text())) if report.exists() else 0)
            print(f"[{target}] {done} of {total}", file=sys.stderr, flush=True)
        else:
            return


def recorded() -> dict[str, dict[str, str]]:
    """Target -> case -> how the bare converter ended."""
    outcomes: dict[str, dict[str, str]] = json.loads(_BARE.read_text())["outcomes"]
    return outcomes


def record(outcomes: Sequence[Mapping[str, Any]]) -> None:
    """Put outcomes of bare converters, just run, in the place of the recorded ones."""
    value = json.loads(_BARE.read_text()) if _BARE.exists() else {"versions": {}, "outcomes": {}}
    for target in dict.fromkeys(o["target"] for o in outcomes):
        facts = all_targets()[target]
        value["versions"][target] = {name: version(name) for name in facts.packages}
        value["outcomes"].setdefault(target, {}).update(
            {o["case"]: o["status"] for o in outcomes if o["target"] == target}
        )
    write_atomic(_BARE, json.dumps(value, indent=1, sort_keys=True) + "\n")


def inexpressible() -> dict[str, dict[str, str]]:
    """Case (short name) -> target or ``all`` -> why no artifact of that format can hold it."""
    value: dict[str, dict[str, str]] = tomllib.loads((_HERE / "inexpressible.toml").read_text())
    return value


def _correct(outcomes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many cases of one target its format can hold, and how many of them are correct."""
    cannot = inexpressible()
    expressible = [
        o
        for o in outcomes
        if o["status"] != "not-exportable" and not {o["target"], "all"} & set(cannot.get(o["case"].split(":")[1], {}))
    ]
    return len(expressible), sum(o["status"] == "correct" for o in expressible)


def below_aim(outcomes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The targets of which too few cases are correct."""
    found = []
    for target in dict.fromkeys(o["target"] for o in outcomes):
        expressible, correct = _correct([o for o in outcomes if o["target"] == target])
        if correct < _AIMS.get(target, _AIM) * expressible:
            found.append(target)
    return found


def report(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """A line per case with every target's ending, the bare outcome after ``<``, then shares and reasons."""
    bare = recorded()
    cannot = inexpressible()
    targets = list(dict.fromkeys(o["target"] for o in outcomes))
    by_case: dict[str, dict[str, Mapping[str, Any]]] = {}
    for o in outcomes:
        by_case.setdefault(o["case"], {})[o["target"]] = o
    width = max(len(c) for c in by_case)
    lines = [f"{'case'.ljust(width)}  " + "  ".join(f"{t} < bare".ljust(36) for t in targets)]
    for case, row in by_case.items():
        beside = {t: bare.get(t, {}).get(case, "not recorded") for t in targets}
        cells = [f"{row[t]['status']} < {beside[t]}".ljust(36) for t in targets if t in row]
        lines.append(f"{case.ljust(width)}  " + "  ".join(cells))
    lines.append("")
    for t in targets:
        mine = [o for o in outcomes if o["target"] == t]
        counts = Counter(o["status"] for o in mine)
        expressible, correct = _correct(mine)
        share = correct / expressible if expressible else 1.0
        aim = _AIMS.get(t, _AIM)
        lines.append(
            f"{t}: {correct} of {expressible} expressible cases correct ({share:.1%}, aim {aim:.0%}); all: "
            + ", ".join(f"{n} {s}" for s, n in counts.most_common())
        )
        theirs = Counter(bare.get(t, {}).get(o["case"], "not recorded") for o in mine)
        lines.append(f"{t}, bare: " + ", ".join(f"{n} {s}" for s, n in theirs.most_common()))
    lines.append("")
    for o in outcomes:
        if o["status"] != "correct":
            reason = cannot.get(o["case"].split(":")[1], {})
            why = reason.get(o["target"]) or reason.get("all")
            lines.append(
                f"[{o['target']}] {o['case']}: {o['status']}: {o['detail'][:300]}" + (f" ({why})" if why else "")
            )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run, print, and say by the exit code whether any case ended in a fault of ours."""
    parser = argparse.ArgumentParser(prog="nox -s cases --", description=__doc__)
    parser.add_argument("--targets", default=",".join(all_targets()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bare", action="store_true", help="run the bare converters too, and keep what they do")
    parser.add_argument("cases", nargs="*", help="parts of case names; default: all")
    options = parser.parse_args(argv)
    names = [n for n in case_names() if not options.cases or any(c in n for c in options.cases)]
    try:
        targets = [t.name for t in select(options.targets.split(","))]
        if not names:
            raise InputError(f"no case has {' or '.join(options.cases)} in its name")
    except InputError as error:
        fail(error)
        return error.exit_code
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        if options.bare:
            record([o for rows in pool.map(lambda t: run_target(t, names, bare=True), targets) for o in rows])
        outcomes = [o for rows in pool.map(lambda t: run_target(t, names), targets) for o in rows]
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=1) + "\n")
    print(report(outcomes))
    missed = [] if options.cases else below_aim(outcomes)  # a selection says nothing of the whole
    if missed:
        print(f"below the aim: {', '.join(missed)}")
    return 0 if all(o["status"] in GOOD for o in outcomes) and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
