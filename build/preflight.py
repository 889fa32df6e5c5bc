"""``nox -s preflight``: what each target says of a program before any conversion.

Runs in two steps: this module (standard library) captures nothing and only starts the second half in an environment
that has torch; ``--inside`` is that half.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import envs, shell
from build import options as cli
from build.cache import write_atomic
from build.driver import CAPTURE_GROUP, OWN_CODE
from build.entry import main, run_session
from build.errors import EXIT_CODES, InputError
from build.manifest import failure
from build.protocol import error_to_json
from build.sources import Source, sources
from build.summary import error_line
from targets import registry
from targets.contract import Finding

_MARK = {"fine": "fine", "rewritten": "rewritten", "refused": "REFUSED"}


def inspect(source: Mapping[str, Any], target_names: Sequence[str]) -> dict[str, list[Finding]]:
    """Target -> findings for one source. Needs torch, and no toolchain."""
    from build.capture.checks import refuse_training_mode
    from build.capture.load import open_source
    from build.program import signature_of

    program = open_source(source).program
    refuse_training_mode(program)
    signature = signature_of(program)
    return {facts.name: registry.load(facts).preflight(program, signature) for facts in registry.select(target_names)}


def matrix(found: Mapping[str, Sequence[Finding]]) -> str:
    """Subjects down, targets across; a line below for everything that is rewritten or refused."""
    subjects = list(dict.fromkeys((f.kind, f.subject) for findings in found.values() for f in findings))
    head = ("kind", "subject", *found)
    lines = [head]
    for kind, subject in sorted(subjects, key=lambda s: (s[0] != "program", s)):
        cells = []
        for findings in found.values():
            mine = [f.verdict for f in findings if (f.kind, f.subject) == (kind, subject)]
            worst = "refused" if "refused" in mine else "rewritten" if "rewritten" in mine else "fine"
            cells.append(_MARK[worst])
        lines.append((kind, subject, *cells))
    widths = [max(len(row[i]) for row in lines) for i in range(len(head))]
    text = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in lines]
    text.insert(1, "  ".join("-" * w for w in widths))
    notes: dict[str, list[str]] = {}
    for target, findings in found.items():
        for f in findings:
            if f.verdict != "fine":
                where = f" at {f.source}" if f.source else ""
                remedy = f" {f.remedy}" if f.remedy else ""
                notes.setdefault(f"{f.subject}{where}: {f.verdict}: {f.why}.{remedy}", []).append(target)
    return "\n".join([*text, *(f"[{', '.join(dict.fromkeys(t))}] {note}" for note, t in notes.items())])


def _inside(job_file: str) -> int:
    """The half that has torch: reads the job, writes findings or the error beside it."""
    job = json.loads(Path(job_file).read_text())
    answer: dict[str, Any] = {}
    try:
        found = inspect(job["source"], job["targets"])
        answer["findings"] = {t: [dataclasses.asdict(f) for f in rows] for t, rows in found.items()}
    except Exception as error:
        traceback.print_exc()
        answer["error"] = _error(error)
    Path(job_file).with_suffix(".answer").write_text(json.dumps(answer))
    return 0


def _error(error: Exception) -> dict[str, Any]:
    found = failure(error_to_json(error))
    return {**found, "exit_code": EXIT_CODES[found["code"]], "line": error_line(found)}


def _ask(source: Source, options: cli.Options, python: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="edgeport-preflight-") as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"source": dict(source.job), "targets": options.targets}))
        environment = {"PYTHONPATH": str(envs.ROOT), "EDGEPORT_CACHE": str(options.out / "cache")}
        command: list[str | Path] = [python, "-m", "build.preflight", "--inside", job]
        done = shell.run(command, env=environment, capture=not options.debug, check=False)
        if not job.with_suffix(".answer").exists():
            died = InputError(f"the process died that was to read it (exit code {done.returncode})", remedy=OWN_CODE)
            return {"error": _error(died)}
        answer: dict[str, Any] = json.loads(job.with_suffix(".answer").read_text())
        return answer


def preflight(options: cli.Options) -> int:
    """Print a matrix per source. Exit 3 when a target refuses a program, 2 when a program can't be read."""
    registry.select(options.targets)
    environment = envs.ensure(CAPTURE_GROUP)
    worst, report = 0, []
    for source in sources(options, environment.packages):
        answer = _ask(source, options, environment.python)
        report.append({"model": source.name, **answer})
        if "error" in answer:
            print(f"error: {source.name}: {answer['error']['line']}", file=sys.stderr)
            worst = max(worst, answer["error"]["exit_code"])
            continue
        found = {t: [Finding(**f) for f in rows] for t, rows in answer["findings"].items()}
        print(f"== {source.name}\n{matrix(found)}", flush=True)
        if any(f.verdict == "refused" for rows in found.values() for f in rows):
            worst = max(worst, 3)
    if options.json is not None:
        write_atomic(options.json, json.dumps({"schema_version": 1, "programs": report}, indent=1) + "\n")
    return worst


def session(argv: Sequence[str]) -> int:
    """The ``preflight`` session."""
    return run_session("preflight", argv, preflight, empty={"programs": []})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(_inside(sys.argv[2]))
    main(lambda: session(sys.argv[1:]))
