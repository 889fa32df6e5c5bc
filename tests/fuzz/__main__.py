"""``python -m tests.fuzz FOLDER SUFFIX FIRST [HASH…]``: read every mutant of a folder, under limits, and tell of each.

One JSON line before and one after each, so that the parent knows which one killed it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.parts import EXTRA_MEMORY, HOSTILE_CODE, SECONDS_PER_MUTANT


def _child(folder: Path, suffix: str, first: int, known: set[str]) -> None:
    import faulthandler
    import resource
    import signal

    import torch

    from build.errors import EdgeportError

    read = _reader(suffix, folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY, used + EXTRA_MEMORY))
    torch.set_num_threads(1)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    os.chdir(work)
    faulthandler.enable()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def too_long(*_: object) -> None:
        faulthandler.dump_traceback()
        os._exit(99)

    signal.signal(signal.SIGALRM, too_long)
    for path in sorted(p for p in folder.iterdir() if p.suffix == suffix and p.stem.isdigit())[first:]:
        index = int(path.stem)
        print(json.dumps({"index": index}), file=out, flush=True)
        signal.alarm(SECONDS_PER_MUTANT)
        try:
            outcome, detail = read(path, known)
        except EdgeportError as error:
            text = str(error)
            outcome = "refused" if text and "\n" not in text and len(text) < 1200 else "long-message"
            detail = f"{error.code}: {text}"
        except BaseException as error:
            outcome, detail = "error", f"{type(error).__name__}: {error}"[:1500]
        signal.alarm(0)
        if "antigravity" in sys.modules or any(work.iterdir()):
            outcome = "executed"
            for found in work.iterdir():
                found.unlink()
        print(json.dumps({"index": index, "outcome": outcome, "detail": detail}), file=out, flush=True)


def _reader(suffix: str, folder: Path) -> Callable[[Path, set[str]], tuple[str, str]]:
    from build.archive import load_program
    from build.content_hash import content_hash
    from build.program import call, signature_of

    if suffix == ".selftest":

        def read_unchecked(path: Path, known: set[str]) -> tuple[str, str]:
            if path.read_bytes() == b"dies":
                os.abort()
            exec(HOSTILE_CODE)
            return "same", ""

        return read_unchecked

    if suffix == ".pt2":

        def read_program(path: Path, known: set[str]) -> tuple[str, str]:
            import torch
            from torch.utils._pytree import tree_leaves

            program = load_program(path)
            signature_of(program)
            if content_hash(program) in known:
                return "same", ""
            # A program that differs may fail when it runs, but running it must not do anything else.
            detail = "runs"
            try:
                examples = [t for t in tree_leaves(program.example_inputs) if isinstance(t, torch.Tensor)]
                call(program)(examples)
            except Exception as error:
                detail = f"fails when run: {type(error).__name__}: {' '.join(str(error).split())[:150]}"
            return "different", detail

        return read_program

    from build.calls import read_calls

    signature = signature_of(load_program(folder / "program.pt2", trust=True))

    def read_call_file(path: Path, known: set[str]) -> tuple[str, str]:
        calls = read_calls(path, signature, warn=lambda _: None)
        for one in calls:
            for spec in signature.inputs:
                if str(one.inputs[spec.name].dtype) != f"torch.{spec.dtype}":
                    raise TypeError(f"{spec.name} has another dtype")
                one.inputs[spec.name].clone()
        return "different", f"{len(calls)} calls"

    return read_call_file


if __name__ == "__main__":
    _child(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), set(sys.argv[4:]))
