"""The decision table: every artifact on every device, with its verdict. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from build.budgets import MEASURED, judge
from device_bench import verdict
from device_bench.report.data import Build, Limit, Measured, Row
from device_bench.report.text import clean, figure, message
from device_bench.verdict import Rules, Word
from models.spec import Budget

#: the doubt of a row that was measured nowhere though its budget limits times.
NOT_MEASURED = "not measured"
#: why an artifact fails whose files are gone or altered.
ALTERED = "its files are not those of its manifest: build again"
#: how a verdict begins the reason that outputs are not those of this host.
_WRONG = "its outputs differ"
#: (model, target, precision)
Name = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Judging:
    """By what rows are judged.

    Attributes:
        budgets: of a model.
        platforms: those that a target ships to.
        device_class: whose budgets apply beside those for every class.
        limits: of (run, device, model, target, precision), not cleaned: ``p95_ms`` and ``peak_mb`` as the run itself
            had them; they stand in for the model's own.
        rules: of a run, where it recorded them: what it was told to let count.
    """

    budgets: Callable[[str], Sequence[Budget]]
    platforms: Callable[[str], Sequence[str]]
    device_class: str = "*"
    limits: Mapping[tuple[str, ...], Mapping[str, float | None]] | None = None
    rules: Mapping[str, Rules] = field(default_factory=dict)

    def tightest(self, model: str, platforms: Sequence[str]) -> dict[str, float]:
        """Limit -> the tightest of the budgets that apply."""
        found: dict[str, float] = {}
        for budget in self.budgets(model):
            if budget.platform not in ("*", *platforms) or budget.device_class not in ("*", self.device_class):
                continue
            for name in (*MEASURED, "max_bytes", "max_metric_drop", "max_changed"):
                value = getattr(budget, name)
                if value is not None:
                    found[name] = min(found.get(name, float(value)), float(value))
            if budget.min_metric is not None:
                found["min_metric"] = max(found.get("min_metric", budget.min_metric), budget.min_metric)
        return found


def row_of(
    name: Name,
    build: Build | None,
    manifest: Mapping[str, Any] | None,
    measured: Measured | None,
    values: Sequence[Mapping[str, Any]],
    judging: Judging,
    *,
    platform: str,
    run: str = "",
    swept: bool = False,
) -> Row:
    """One line of the table.

    Args:
        name, run: not cleaned.
        values: the measurements behind ``measured``, failed ones included.
        platform: whose budgets apply to ``measured``; without it, those that the target ships to.
        swept: the run is a sweep over batches; a limit of p95 is of the call as the model's spec has it.
    """
    limits = judging.tightest(name[0], [platform] if measured and platform else judging.platforms(name[1]))
    if measured is not None and judging.limits is not None:
        own = judging.limits.get((run, values[0]["measurement"]["device"], *name))
        limits = {k: v for k, v in limits.items() if own is None or k not in MEASURED}
        limits |= {k: v for k, v in (own or {}).items() if v is not None}
    if measured is not None and swept:
        limits.pop("p95_ms", None)
    words: list[Word | None] = []
    fails: list[str] = []
    doubts: list[str] = []
    wrong: list[str] = []
    notes: list[str] = []
    judged: list[Limit] = []
    # A measured row of other bytes says nothing about the artifact that lies there, nor the other way round.
    if manifest is not None and build is not None and not (measured and measured.stale):
        static = Budget(**{k: v for k, v in limits.items() if k not in MEASURED})  # type: ignore[arg-type]
        for one in judge(static, _with_device(manifest, measured)):
            judged.append(Limit(name=one.limit, allowed=one.allowed, value=one.value, verdict=one.verdict))
            words.append(one.verdict)
            if one.verdict != "PASS":
                kind = fails if one.verdict == "FAIL" else doubts
                kind.append(_broken(one.limit, one.allowed, one.value, one.why))
        if build.intact and not build.ok:
            words.append("FAIL")
            fails.append(f"the build ended with {build.status}")
    if build is not None and not build.intact:
        words.append("FAIL")
        fails.append(ALTERED)
    if measured is not None:
        times = {k: limits.get(k) for k in MEASURED}
        rules = judging.rules.get(run, Rules())
        found = verdict.judge(values, repeats=measured.wanted, rules=rules, **times)
        words.append(found.word)
        told = [message(r) for r in found.reasons]
        if found.word == "FAIL":
            fails += told
        elif found.word == "INCONCLUSIVE" or (measured.emulated and limits):
            doubts += told
        # Without limits the reasons are all that is wrong with the times, whether or not a limit is about them.
        notes += map(message, verdict.judge(values, repeats=measured.wanted, rules=rules).reasons)
        wrong += [r for r in told if r.startswith(_WRONG)]
        judged += [_limit(k, v, getattr(measured, k), found.word) for k, v in times.items() if v is not None]
        if times["peak_mb"] is not None and measured.peak_mb is None:
            words.append("INCONCLUSIVE")
            doubts.append("peak memory is not known there")
        if measured.emulated and limits:
            words.append("INCONCLUSIVE")  # whatever the limits are: nobody ships to an emulated device
        if measured.stale:
            (doubts if limits else notes).append("other bytes were measured than lie in the output folder now")
            words.append("INCONCLUSIVE" if limits else None)
    elif any(k in limits for k in MEASURED):
        words.append("INCONCLUSIVE")
        doubts.append(NOT_MEASURED)
        judged += [
            Limit(name=k, allowed=limits[k], value=None, verdict="INCONCLUSIVE") for k in MEASURED if k in limits
        ]
    sure = measured is not None and measured.p95_ms is not None and not (measured.stale or notes)
    return Row(
        model=clean(name[0]),
        target=clean(name[1]),
        precision=clean(name[2]),
        build=build,
        measured=measured,
        limits=tuple(judged),
        verdict=_overall(words),
        fails=tuple(dict.fromkeys(fails)),
        doubts=tuple(dict.fromkeys(doubts)),
        wrong=tuple(dict.fromkeys(wrong)),
        notes=tuple(n for n in dict.fromkeys(notes) if n not in (*fails, *doubts)),
        times_sure=sure,
        times_count=sure and not swept,
    )


def _overall(words: Sequence[Word | None]) -> Word | None:
    for word in ("FAIL", "INCONCLUSIVE", "PASS"):
        if word in words:
            return word  # type: ignore[return-value]
    return None


def _limit(name: str, allowed: float, value: float | None, word: Word | None) -> Limit:
    """A time that is within its limit still does not pass when the measurement does not count."""
    broken = word == "FAIL" and value is not None and value > allowed
    verdict: Word = "FAIL" if broken else "PASS" if word == "PASS" and value is not None else "INCONCLUSIVE"
    return Limit(name=name, allowed=allowed, value=value, verdict=verdict)


def _with_device(manifest: Mapping[str, Any], measured: Measured | None) -> dict[str, Any]:
    """A manifest with the metric and decisions of the device, where they were measured there."""
    value = dict(manifest)
    if measured is not None and measured.metric is not None:
        value["metric"] = {"value": measured.metric.value, "reference": measured.metric.reference}
    if measured is not None and measured.changed is not None:
        value["verification"] = {"decisions": measured.decisions, "changed_decisions": measured.changed}
    return value


def _broken(limit: str, allowed: float, value: float | None, why: str) -> str:
    if value is None:
        return f"{limit}: {why}"
    return f"{limit} is {figure(limit, value)}, the budget is {figure(limit, allowed)}"
