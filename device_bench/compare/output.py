"""A comparison as text, Markdown and JSON. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from device_bench.compare.change import Change
from device_bench.compare.pair import Comparison, Pair, Rules, Word
from device_bench.compare.sides import Side
from device_bench.compare.words import aligned, markdown, markdown_table, milliseconds, percent
from device_bench.store import Key, Problem, plain

SCHEMA_VERSION = 1
_WORDS: tuple[Word, ...] = ("slower", "faster", "same", "NOISY", "INCOMPARABLE")


def _head(rules: Rules) -> list[str]:
    what = ["model", "target", "precision", "device", "settings"]
    return [
        *what,
        "p50 A",
        "p50 B",
        "change",
        f"{rules.confidence:.0%} interval",
        "p95",
        "decisions",
        "metric",
        "verdict",
    ]


def _row(pair: Pair, rules: Rules) -> list[str]:
    k, p50 = pair.key, pair.changes.get(50)
    decisions = pair.decisions
    counts = ["-" if n is None else str(n) for n in (decisions.a, decisions.b)]
    return [
        k.model,
        k.target,
        k.precision,
        k.device or "-",
        k.settings,
        milliseconds(p50.a_ms if p50 else pair.a.p50_ms),
        milliseconds(p50.b_ms if p50 else pair.b.p50_ms),
        percent(p50.change) if p50 else "-",
        _interval(p50),
        _tail(pair),
        counts[0] if counts[0] == counts[1] else f"{counts[0]} → {counts[1]}",
        pair.metrics.shown,
        pair.word + (f" (p{rules.percent})" if rules.percent != 50 else ""),
    ]


def _interval(change: Change | None) -> str:
    return "-" if change is None else f"{percent(change.low)} … {percent(change.high)}"


def _tail(pair: Pair) -> str:
    p95 = pair.changes.get(95)
    return "-" if p95 is None else f"{percent(p95.change)} ({percent(p95.low)} … {percent(p95.high)})"


def _where(key: Key) -> str:
    return plain(f"{key.artifact}{f' on {key.device}' if key.device else ''}, {key.settings}", 160)


def _lines(found: Comparison) -> list[str]:
    """What the table has no room for. Each line is harmless text."""
    lines = []
    for pair in found.pairs:
        where = _where(pair.key)
        lines += [f"{where}: {pair.word}: {reason}" for reason in pair.reasons]
        lines += [f"{where}: {line}" for line in (*pair.decisions.lines(), *pair.metrics.lines())]
        lines += [f"{where}: note: {note}" for note in pair.notes]
    lines += [f"{_where(key)}: only in A" for key in found.missing]
    lines += [f"{_where(key)}: only in B" for key in found.new]
    return lines


def count(found: Comparison) -> str:
    """``1 slower, 3 same``."""
    words = Counter(pair.word for pair in found.pairs)
    parts = [f"{words[w]} {w}" for w in _WORDS if words[w]]
    accuracy = {
        "with a lower metric": sum(p.metrics.lower for p in found.pairs),
        "other than the host": sum(p.metrics.newly_flagged for p in found.pairs),
        "without accuracy in B": sum(p.metrics.missing for p in found.pairs),
    }
    parts += [f"{number} {what}" for what, number in accuracy.items() if number]
    parts += [f"{len(found.missing)} only in A"] if found.missing else []
    parts += [f"{len(found.new)} only in B"] if found.new else []
    return ", ".join(parts) or "nothing in common"


def table(found: Comparison, a: Side, b: Side, rules: Rules) -> str:
    """For a terminal."""
    lines = [f"A: {plain(a.text)}", f"B: {plain(b.text)}", ""]
    if found.pairs:
        lines += [*aligned(_head(rules), [_row(p, rules) for p in found.pairs]), ""]
    return "\n".join([*lines, *_lines(found), count(found)])


def to_markdown(
    found: Comparison, a: Side, b: Side, rules: Rules, broken: Sequence[str], problems: Sequence[Problem]
) -> str:
    """Fit for a pull request: the outcome first, the details folded away."""
    outcome = "❌ " + "; ".join(broken) if broken else "✅ nothing that counts got worse"
    lines = [
        f"### Benchmarks: {markdown(a.text)} → {markdown(b.text)}",
        "",
        f"{outcome}. {count(found)}.",
        "",
        f"A change counts from {rules.threshold:.1%} on, with {rules.confidence:.0%} confidence; "
        f"a loss of the metric above {rules.max_metric_drop:g}.",
        "",
    ]
    if found.pairs:
        lines += [*markdown_table(_head(rules), [_row(p, rules) for p in found.pairs]), ""]
    details = [*_lines(found), *(f"skipped {p.path}: {p.reason}" for p in problems)]
    if details:
        lines += ["<details><summary>Details</summary>", ""]
        lines += [f"- {markdown(line, 400)}" for line in details]
        lines += ["", "</details>"]
    return "\n".join(lines).rstrip() + "\n"


def to_json(
    found: Comparison, a: Side, b: Side, rules: Rules, broken: Sequence[str], problems: Sequence[Problem]
) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": {"text": a.text, "kind": a.kind, "results": a.store.place},
        "b": {"text": b.text, "kind": b.kind, "results": b.store.place},
        "threshold": rules.threshold,
        "confidence": rules.confidence,
        "judged": f"p{rules.percent}",
        "seed": rules.seed,
        "max_metric_drop": rules.max_metric_drop,
        "failed": list(broken),
        "pairs": [p.to_json() for p in found.pairs],
        "new": [k.to_json() for k in found.new],
        "missing": [k.to_json() for k in found.missing],
        "problems": [{"path": p.path, "reason": p.reason} for p in problems],
    }
