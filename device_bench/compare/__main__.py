"""``python -m device_bench.compare A B [options]``: what ``nox -s compare`` runs.

Exit code 6 when something that ``--fail-on`` names happened, 0 otherwise; 2 when A or B cannot be used.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import ExitStack

from build.entry import main as run_as_process
from build.errors import GateError, InputError
from device_bench.compare import output
from device_bench.compare.metric import MAX_DROP
from device_bench.compare.pair import Comparison, Rules, compare
from device_bench.compare.sides import FORMS, Stores, open_side
from device_bench.store import cli

#: what ``--fail-on`` may name.
FAILURES = ("slower", "decisions", "metric", "noisy", "incomparable", "missing")
_DEFAULT = "slower,decisions,metric"


def parser() -> cli.Parser:
    """The options; ``--help`` prints them."""
    p = cli.parser("compare", f"Compare two sets of results. A and B: {FORMS}.")
    p.add_argument("a", metavar="A", help="the old one")
    p.add_argument("b", metavar="B", help="the new one")
    p.add_argument("--threshold", metavar="X%", default="2%", help="a smaller change does not matter (default: 2%%)")
    p.add_argument("--confidence", metavar="X", default="0.95", help="of the interval (default: 0.95)")
    p.add_argument("--judge", choices=("p50", "p95"), default="p50", help="the figure that the verdict is about")
    p.add_argument("--max-metric-drop", metavar="X", default=str(MAX_DROP), help=f"of the task's metric ({MAX_DROP})")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the interval's draws (default: 0)")
    p.add_argument("--fail-on", metavar="W,W", default=_DEFAULT, help=f"{', '.join(FAILURES)}, none ({_DEFAULT})")
    p.add_argument("--markdown", metavar="FILE", help="write the comparison as Markdown")
    p.add_argument("--json", metavar="FILE", help="write the comparison as JSON")
    return p


def _compare(raw: argparse.Namespace) -> int:
    failures = _failures(raw.fail_on)
    if raw.seed < 0:
        raise InputError(f"--seed {raw.seed}: needs 0 or more")
    rules = Rules(
        threshold=cli.share(raw.threshold, "--threshold", below=1.0),
        confidence=cli.share(raw.confidence, "--confidence", below=1.0),
        percent=int(raw.judge[1:]),
        seed=raw.seed,
        max_metric_drop=_drop(raw.max_metric_drop),
    )
    cli.check_outputs(raw.results, {"--markdown": raw.markdown, "--json": raw.json})
    with ExitStack() as stack:
        stores = Stores(stack)
        a, b = (open_side(text, raw.results, cli.query(raw), stores) for text in (raw.a, raw.b))
        if (a.kind == "device") != (b.kind == "device"):
            raise InputError("a device is compared with a device", remedy="Write device:NAME for both, or for neither.")
        if a.store.place == b.store.place and a.cells == b.cells:
            raise InputError("A and B are the same measurements")
        problems = cli.report_problems([a.store, b.store])
        found = compare(a, b, rules)
    if not found.pairs:
        raise InputError(
            f"A and B have nothing in common: {output.count(found)}",
            remedy="A cell is the same model, target, precision, device, threads, batch and variant.",
        )
    broken = _broken(found, failures)
    cli.write_text(raw.markdown, output.to_markdown(found, a, b, rules, broken, problems))
    text = json.dumps(output.to_json(found, a, b, rules, broken, problems), indent=1, allow_nan=False) + "\n"
    cli.write_text(raw.json, text)
    print(output.table(found, a, b, rules), flush=True)
    if broken:
        print(f"failed: {'; '.join(broken)}", flush=True)
        return GateError.exit_code
    return 0


def _drop(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"--max-metric-drop {text[:40]}: needs a number from 0 on, as {MAX_DROP}")
    return value


def _failures(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
    if words == ("none",):
        return ()
    if not words or any(w not in FAILURES for w in words):
        raise InputError(f"--fail-on {text[:60]}: not understood", remedy=f"Words: {', '.join(FAILURES)}; or none.")
    return words


def _broken(found: Comparison, failures: tuple[str, ...]) -> list[str]:
    """What fails the comparison, in words."""
    pairs = found.pairs
    counts = {
        "slower": {"slower": sum(p.word == "slower" for p in pairs)},
        "decisions": {"more changed decisions": sum(p.decisions.more for p in pairs)},
        "metric": {
            "with a lower metric": sum(p.metrics.lower for p in pairs),
            "other than the host": sum(p.metrics.newly_flagged for p in pairs),
        },
        "noisy": {"noisy": sum(p.word == "NOISY" for p in pairs)},
        "incomparable": {"incomparable": sum(p.word == "INCOMPARABLE" for p in pairs)},
        "missing": {
            "missing in B": len(found.missing),
            "without accuracy in B": sum(p.metrics.missing for p in pairs),
        },
    }
    return [f"{number} {words}" for name in failures for words, number in counts[name].items() if number]


def main(argv: list[str]) -> int:
    """Compare; returns the exit code."""
    return cli.run(argv, parser, _compare)


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
