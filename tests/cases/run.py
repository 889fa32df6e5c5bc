"""Run the public failing inputs through a target: ``python -m tests.cases.run --target litert [case …]``.

Each case ends as one of
    correct             outputs equal PyTorch's at the example and at every further size
    clear-error         an EdgeportError that names the op and the way out
    not-exportable      torch.export itself refuses the case (or it can't be saved as .pt2)
    WRONG, NARROWED, UNCLEAR, CRASH    faults of ours
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.cache import write_atomic
from build.capture.checks import refuse_training_mode
from build.errors import EdgeportError, InputError, LoweringError
from build.program import call, plain_tensors, signature_of
from build.verify.check import signature_problems
from build.verify.compare import Tolerance, difference
from build.verify.nonfinite import Watch
from targets.checks import check_inputs
from targets.contract import LowerRequest, Signature

GOOD = ("correct", "clear-error", "not-exportable")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one case ended on one target."""

    case: str
    target: str
    status: str
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A case in one form, whichever file it comes from. ``extra`` are further inputs inside the declared range."""

    module: Any
    args: tuple[Any, ...]
    dynamic_shapes: Any
    extra: tuple[tuple[Any, ...], ...]
    tolerance: float


def case_names() -> list[str]:
    """All cases, ``mobile:NAME`` or ``desktop:NAME``."""
    from tests.cases import desktop_cases, mobile_cases

    return [f"mobile:{n}" for n in mobile_cases.CASES] + [f"desktop:{n}" for n in desktop_cases.CASES]


def load_case(name: str) -> Loaded:
    """Build a case's module and inputs anew."""
    from tests.cases import desktop_cases, mobile_cases

    family, short = name.split(":")
    if family == "mobile":
        m = mobile_cases.CASES[short]
        return Loaded(
            module=m.make(),
            args=m.args(),
            dynamic_shapes=m.dynamic_shapes,
            extra=tuple(e() for e in m.extra),
            tolerance=m.tol,
        )
    d = desktop_cases.CASES[short]
    _, args, shapes, extra = d.as_tuple()
    return Loaded(module=d.module(), args=args, dynamic_shapes=shapes, extra=tuple(extra), tolerance=d.tol)


def run_case(name: str, target: str) -> Outcome:
    """Export, save, reload, pre-flight, lower, load, compare."""
    started = time.monotonic()

    def end(status: str, detail: str = "") -> Outcome:
        line = " ".join(detail.split())
        return Outcome(case=name, target=target, status=status, detail=line, seconds=time.monotonic() - started)

    import torch
    from torch.utils import _pytree as pytree

    case = load_case(name)
    with tempfile.TemporaryDirectory(prefix="edgeport-case-") as folder:
        path = Path(folder) / "program.pt2"
        try:
            exported = torch.export.export(case.module, case.args, dynamic_shapes=case.dynamic_shapes)
            torch.export.save(exported, path)
            reload: Callable[[], Any] = lambda: plain_tensors(torch.export.load(path))  # noqa: E731
            program = reload()
        except Exception as error:  # torch's own refusal: nothing reached us
            return end("not-exportable", f"{type(error).__name__}: {str(error)[:200]}")
        try:
            refuse_training_mode(program)
            module = importlib.import_module(f"targets.{target}")
            signature = signature_of(program)
            refused = [f for f in module.preflight(program, signature) if f.verdict == "refused"]
            if refused:
                first = refused[0]
                clear = bool(first.why and first.remedy)
                text = f"preflight: {first.subject}: {first.why} [{first.source}] {first.remedy}"
                return end("clear-error" if clear else "UNCLEAR", text)
            reference = call(reload())
            out = Path(folder) / "out"
            out.mkdir()
            lowered = module.lower(
                reload(), LowerRequest(model=name, signature=signature, precision="fp32", directory=out)
            )
            runner = module.load(out, lowered.files, signature)
            if lowered.narrowed:
                return end("NARROWED", f"{lowered.narrowed}")
            unlike = signature_problems(runner.signature(), signature)
            if unlike:
                return end("WRONG", "; ".join(unlike))
            watch = Watch(reload, signature, lowered.nan_unsafe)
            tolerance = Tolerance(atol=case.tolerance, rtol=case.tolerance)
            for args in (case.args, *case.extra):
                leaves = [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in pytree.tree_leaves(args)]
                want = [t.detach().clone().contiguous().numpy() for t in reference([t.clone() for t in leaves])]
                feed = {
                    s.name: t.detach().clone().contiguous().numpy()
                    for s, t in zip(signature.inputs, leaves, strict=True)
                }
                try:
                    got = runner.run(feed)
                except InputError as error:
                    return end(_refused(error, signature, feed), f"{[tuple(t.shape) for t in leaves]}: {error}")
                for spec, expected in zip(signature.outputs, want, strict=True):
                    d = difference(spec.name, got[spec.name], expected, tolerance)
                    only_nonfinite = d.nonfinite and not d.beyond and not d.problem
                    if only_nonfinite and watch.excuses(feed, spec.name, got[spec.name], expected):
                        continue
                    if not d.ok:
                        shapes = [tuple(t.shape) for t in leaves]
                        return end("WRONG", f"{d} at input shapes {shapes}")
            return end("correct", f"with a warning: NaN through {watch.named}" if watch.named else "")
        except EdgeportError as error:
            clear = isinstance(error, (LoweringError, InputError)) and bool(error.remedy and (error.op or error.source))
            return end("clear-error" if clear else "UNCLEAR", f"{error.code}: {error}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return end(
                "UNCLEAR", f"{type(error).__name__}: {str(error)[:300]} at {Path(last.filename).name}:{last.lineno}"
            )


def _refused(error: InputError, signature: Signature, feed: Mapping[str, Any]) -> str:
    """What it is that an artifact refuses inputs: right beyond the program's range; within it, it has to say how on.

    torch.export may make the range smaller than a case's declaration (sizes 0 and 1).
    """
    try:
        check_inputs(signature, feed)
    except InputError:
        return "clear-error"
    return "clear-error" if error.remedy else "UNCLEAR"


def main(argv: list[str] | None = None) -> int:
    """Print one line per case and a count; exit 1 when a case ended in a fault of ours."""
    parser = argparse.ArgumentParser(prog="python -m tests.cases.run", description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only-bad", action="store_true", help="print only the cases that are not correct")
    parser.add_argument("--bare", action="store_true", help="run the bare converter instead of ours")
    parser.add_argument("--exact", action="store_true", help="the names given are whole")
    parser.add_argument("cases", nargs="*", help="mobile:NAME, desktop:NAME, or a part of a name; default: all")
    options = parser.parse_args(argv)
    names = [n for n in case_names() if not options.cases or any(c in n for c in options.cases)]
    if options.exact:
        names = [n for n in options.cases if n in case_names()]
    run = run_case
    if options.bare:
        from tests.cases.bare import run_bare as run
    outcomes: list[Outcome] = []
    for name in names:
        outcome = run(name, options.target)
        outcomes.append(outcome)
        if not (options.only_bad and outcome.status == "correct"):
            print(f"{outcome.status:15} {name:40} {outcome.seconds:5.1f}s {outcome.detail[:400]}", flush=True)
        if options.json:
            write_atomic(options.json, json.dumps([vars(o) for o in outcomes], indent=1))
    counts = Counter(o.status for o in outcomes)
    print(f"{options.target}: " + ", ".join(f"{n} {s}" for s, n in counts.most_common()))
    return 0 if all(o.status in GOOD for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
