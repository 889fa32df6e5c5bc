"""Reading mutants in a process of their own, and what became of each."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

from tests.fuzz.parts import Mutant, Result


def run_all(folder: Path, files: list[Mutant], suffix: str, known_hashes: list[str]) -> list[Result]:
    """Write the mutants into ``folder`` and read each in a child process; a child that dies is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, mutant in enumerate(files):
        (folder / f"{i:06d}{suffix}").write_bytes(mutant.data)
    results: dict[int, Result] = {}
    while len(results) < len(files):
        first = len(results)
        before = len(results)
        command = [sys.executable, "-m", "tests.fuzz", str(folder), suffix, str(first), *known_hashes]
        process = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
        started = first
        for line in process.stdout.splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                started = row["index"]
                if "outcome" in row:
                    results[started] = Result(name=files[started].name, outcome=row["outcome"], detail=row["detail"])
        if len(results) < len(files):
            if len(results) == before and started == first and not process.stdout:
                raise RuntimeError(f"the child did not start: {process.stderr[-2000:]}")
            kind = "hang" if process.returncode == 99 else "crash"
            detail = f"exit {process.returncode}: {process.stderr[-1500:]}"
            results[len(results)] = Result(name=files[len(results)].name, outcome=kind, detail=detail)
    return [results[i] for i in range(len(files))]
