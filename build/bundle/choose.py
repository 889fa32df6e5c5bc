"""Which artifacts go into a bundle, and everything that speaks against them. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from build import manifest as manifests
from build.budgets import MEASURED, check_class, from_mapping, judge, overall, read_budgets
from build.bundle.measured import Measured, figures, newest
from build.bundle.options import BundleOptions
from build.bundle.refusals import Item, Refusal, budget_refusals, item_refusals, program_refusals, stops_text
from build.errors import GateError, InputError
from build.record import ProgramRecord, read_record
from device_bench.platforms import speaks_for
from models.spec import Budget
from targets.precisions import PRECISIONS
from targets.registry import TargetFacts, platforms, select


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a bundle is made of.

    Attributes:
        program: folder of the captured program.
        rule: how the artifacts were chosen: ``precisions`` or ``budget``.
    """

    platform: str
    program: Path
    record: ProgramRecord
    items: tuple[Item, ...]
    rule: str
    refusals: tuple[Refusal, ...] = field(default=())

    def settle(self, allow: str | None, like: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
        """The exceptions to record: none where nothing speaks against the bundle.

        Raises:
            GateError: something does, and no reason was given or none can except it.
        """
        firm = [r for r in self.refusals if r.firm]
        against = firm or ([] if allow or like else list(self.refusals))
        if against:
            more = f" (and {len(against) - 1} more: {'; '.join(r.what for r in against[1:4])})" if against[1:] else ""
            way = against[0].remedy or ("" if firm else 'Mend it, or give a reason: --allow "…".')
            raise GateError(f"no bundle of {self.record.name} for {self.platform}: {against[0].what}{more}", remedy=way)
        if like:
            return [dict(e) for e in like["exceptions"]]
        return [{"what": r.what, "reason": str(allow)} for r in self.refusals]


def choose(options: BundleOptions, model: str, platform: str, *, captured_as: str | None = None) -> Chosen:
    """The artifacts of one model for one platform.

    By ``--precisions``: all of the platform's targets at these. Otherwise, for each budget that applies, the artifact
    that ``check`` would ship. A model without budgets: fp32 on every target of the platform. ``--like``: the same.

    Args:
        captured_as: the key that a capture of the source would have now; None where that can't be told.

    Raises:
        InputError: the model was never built, or nothing of it is there for this platform.
    """
    program = options.build.out / model / "program"
    build = f"nox -s build-{platform} -- --model {model}"
    if not program.is_dir():
        raise InputError(f"'{model}' is not built below '{options.build.out.name}'", remedy=build)
    record = read_record(program)
    budgets = [] if options.like else _budgets(options, record, platform)
    by_budget = bool(budgets) and options.build.precisions_given == "default"
    items, refusals = _candidates(options, model, platform, budgets, by_budget=by_budget)
    refusals += program_refusals(program, record, captured_as)
    if by_budget:
        items, missing = _shipped(items, budgets, options.build.choose)
        refusals += missing
    if not items and not any(r.firm for r in refusals):
        raise InputError(f"nothing of '{model}' is built for {platform}", remedy=build)
    for item in items:
        refusals += item_refusals(item, record) + ([] if by_budget else budget_refusals(item))
    return Chosen(
        platform=platform,
        program=program,
        record=record,
        items=tuple(items),
        rule="budget" if by_budget else "precisions",
        refusals=tuple(refusals),
    )


def _candidates(
    options: BundleOptions, model: str, platform: str, budgets: Sequence[Budget], *, by_budget: bool
) -> tuple[list[Item], list[Refusal]]:
    """Every artifact that may be shipped, judged; and what speaks against them already."""
    targets = [t for t in select(options.build.targets) if t.name in platforms()[platform]]
    runs, problems = newest(options.results, model) if options.results else ({}, [])
    refusals = [Refusal(what=f"evidence that cannot be used: {p}") for p in problems]
    items = []
    for target, precision in _pairs(options, targets, by_budget=by_budget):
        folder = options.build.out / model / target.name / precision
        value = manifests.read(folder)
        if value is not None:
            taken = runs.get((target.name, precision), [])
            mine = tuple(r for r in taken if speaks_for(r.values[0]["device"], platform))
            judged = tuple(_judge(b, value, mine) for b in budgets)
            item = Item(
                target=target, precision=precision, folder=folder, manifest=value, measured=mine, budgets=judged
            )
            items.append(item)
        elif target.unavailable(precision) is None and (options.build.precisions_given == "named" or options.like):
            build = f"nox -s build-{platform} -- --model {model} --precisions {precision}"
            refusals.append(Refusal(what=f"{target.name} {precision} is not built", firm=True, remedy=build))
    return items, refusals


def _pairs(options: BundleOptions, targets: Sequence[TargetFacts], *, by_budget: bool) -> list[tuple[TargetFacts, str]]:
    if options.like:
        by_name = {t.name: t for t in targets}
        return [(by_name[a["target"]], a["precision"]) for a in options.like["artifacts"] if a["target"] in by_name]
    return [(t, p) for t in targets for p in (PRECISIONS if by_budget else options.build.precisions)]


def _budgets(options: BundleOptions, record: ProgramRecord, platform: str) -> list[Budget]:
    given = read_budgets(options.build.budgets) if options.build.budgets else None
    every = given if given is not None else [from_mapping(b, f"model '{record.name}'") for b in record.budgets]
    check_class(options.device_class, every)
    classes = ("*", options.device_class)
    mine = [b for b in every if b.platform in ("*", platform)]
    # Without a class named, every class's budget must be kept; with one, those of other classes do not apply.
    return mine if options.device_class == "*" else [b for b in mine if b.device_class in classes]


def _judge(budget: Budget, manifest: Mapping[str, Any], runs: Sequence[Measured]) -> dict[str, Any]:
    values, doubts = figures(runs, budget.p95_ms, budget.peak_mb)
    limits = judge(budget, manifest, values)
    open_ = [j for j in limits if j.limit in MEASURED and j.verdict == "INCONCLUSIVE"]
    return {
        "budget": asdict(budget),
        "limits": [asdict(j) for j in limits],
        "verdict": overall(limits),
        "why": doubts if open_ else [],
    }


def _shipped(items: Sequence[Item], budgets: Sequence[Budget], choose: str) -> tuple[list[Item], list[Refusal]]:
    """For each budget the artifact to ship: the smallest that passes, or the fastest."""
    found: dict[str, list[int]] = {}
    refusals = []
    for index, budget in enumerate(budgets):
        good = [i for i in items if i.budgets[index]["verdict"] == "PASS" and i.manifest["status"] in manifests.OK]
        if good:
            best = min(good, key=lambda i: _cost(i, index, choose))
            found.setdefault(best.label, []).append(index)
            continue
        stops = [f"{i.label}: {stops_text(i.budgets[index])}" for i in items]
        where = f"{budget.platform}, {budget.device_class} devices" if budget.device_class != "*" else budget.platform
        what = f"no artifact keeps the budget for {where} ({'; '.join(stops) or 'nothing is built'})"
        refusals.append(Refusal(what=what))
        # With the exception granted, what comes nearest is shipped: an artifact that is right, with the fewest limits
        # broken, and then the smallest.
        right = [i for i in items if i.manifest["status"] in manifests.OK]
        if right:
            best = min(right, key=lambda i: (_broken(i.budgets[index]), _cost(i, index, choose)))
            found.setdefault(best.label, []).append(index)
    # Each is judged by the budgets it was chosen for: the others belong to other devices.
    kept = [replace(i, budgets=tuple(i.budgets[n] for n in found[i.label])) for i in items if i.label in found]
    return kept, refusals


def _broken(judged: Mapping[str, Any]) -> int:
    return sum(j["verdict"] != "PASS" for j in judged["limits"])


def _cost(item: Item, index: int, choose: str) -> tuple[float, float]:
    p95 = next((j["value"] for j in item.budgets[index]["limits"] if j["limit"] == "p95_ms"), None)
    speed, size = float("inf") if p95 is None else float(p95), float(item.manifest["bytes"])
    return (speed, size) if choose == "fastest" else (size, speed)
