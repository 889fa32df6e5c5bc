"""Which artifacts go into a bundle, and everything that speaks against them. Writes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from build import manifest as manifests
from build.budgets import MEASURED, Verdict, from_mapping, judge, overall, read_budgets
from build.bundle.measured import Measured, figures, newest
from build.bundle.options import BundleOptions
from build.cache import list_files, sha256_file
from build.errors import GateError, InputError
from build.plan import code_of
from build.record import REFERENCE, ProgramRecord, read_record
from models.spec import Budget
from targets.precisions import PRECISIONS
from targets.registry import TargetFacts, platforms, select

#: platform -> kinds of device whose measurements speak for it, and their architecture (None: any).
_DEVICES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "android": (("adb",), None),
    "linux-arm64": (("ssh", "local"), "aarch64"),
    "pc": (("ssh", "local"), "x86_64"),
    "web": (("browser",), None),
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Something that speaks against a bundle. ``firm``: no reason given can except it."""

    what: str
    firm: bool = False
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One artifact of a bundle.

    Attributes:
        budgets: each that applies: ``{"budget", "limits", "verdict", "why"}``.
    """

    target: TargetFacts
    precision: str
    folder: Path
    manifest: Mapping[str, Any]
    measured: tuple[Measured, ...] = ()
    budgets: tuple[Mapping[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """``executorch fp32``."""
        return f"{self.target.name} {self.precision}"

    @property
    def verdict(self) -> Verdict:
        """Over all budgets; PASS when none applies."""
        words = {b["verdict"] for b in self.budgets}
        return "FAIL" if "FAIL" in words else "INCONCLUSIVE" if "INCONCLUSIVE" in words else "PASS"


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


def choose(options: BundleOptions, model: str, platform: str) -> Chosen:
    """The artifacts of one model for one platform.

    By ``--precisions``: all of the platform's targets at these. Otherwise, for each budget that applies, the artifact
    that ``check`` would ship. A model without budgets: fp32 on every target of the platform.

    Raises:
        InputError: the model was never built, or nothing of it is there for this platform.
    """
    program = options.build.out / model / "program"
    if not program.is_dir():
        raise InputError(
            f"'{model}' is not built below '{options.build.out.name}'",
            remedy=f"nox -s build-{platform} -- --model {model}",
        )
    record = read_record(program)
    targets = [t for t in select(options.build.targets) if t.name in platforms()[platform]]
    runs, problems = newest(options.results, model) if options.results else ({}, [])
    refusals = [Refusal(what=f"evidence that cannot be used: {p}") for p in problems]
    refusals += _program_refusals(program, record)
    budgets = _budgets(options, record, platform)
    named = options.build.precisions_given != "default"
    precisions = options.build.precisions if named or not budgets else tuple(PRECISIONS)
    items = []
    wanted = [(target, precision) for target in targets for precision in precisions]
    if options.like:
        by_name = {t.name: t for t in targets}
        wanted = [(by_name[a["target"]], a["precision"]) for a in options.like["artifacts"] if a["target"] in by_name]
        named, budgets = True, []
    for target, precision in wanted:
        if True:
            folder = options.build.out / model / target.name / precision
            value = manifests.read(folder)
            if value is not None:
                mine = tuple(r for r in runs.get((target.name, precision), []) if _speaks_for(r, platform))
                judged = tuple(_judge(b, value, mine) for b in budgets)
                items.append(
                    Item(
                        target=target, precision=precision, folder=folder, manifest=value, measured=mine, budgets=judged
                    )
                )
            elif named and target.unavailable(precision) is None:
                what = f"{target.name} {precision} is not built"
                refusals.append(
                    Refusal(
                        what=what,
                        firm=True,
                        remedy=f"nox -s build-{platform} -- --model {model} --precisions {precision}",
                    )
                )
    if not named and budgets:
        items, missing = _shipped(items, budgets, options.build.choose)
        refusals += missing
    if not items and not any(r.firm for r in refusals):
        raise InputError(
            f"nothing of '{model}' is built for {platform}", remedy=f"nox -s build-{platform} -- --model {model}"
        )
    for item in items:
        refusals += _item_refusals(item, record) + (_budget_refusals(item) if named else [])
    return Chosen(
        platform=platform,
        program=program,
        record=record,
        items=tuple(items),
        rule="budget" if budgets and not named else "precisions",
        refusals=tuple(refusals),
    )


def _speaks_for(run: Measured, platform: str) -> bool:
    kinds, arch = _DEVICES.get(platform, ((), None))
    device = run.values[0]["device"]
    return device["kind"] in kinds and arch in (None, device["arch"])


def _budgets(options: BundleOptions, record: ProgramRecord, platform: str) -> list[Budget]:
    given = read_budgets(options.build.budgets) if options.build.budgets else None
    every = given if given is not None else [from_mapping(b, f"model '{record.name}'") for b in record.budgets]
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
        stops = [f"{i.label}: {_stops(i.budgets[index])}" for i in items]
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


def _stops(judged: Mapping[str, Any]) -> str:
    parts = []
    for j in judged["limits"]:
        if j["verdict"] != "PASS":
            has = j["why"] if j["value"] is None else f"{j['value']:g} against {j['allowed']:g}"
            parts.append(f"{j['limit']} {j['verdict']} ({has})")
    return ", ".join([*parts, *judged["why"]]) or "not ok"


def _program_refusals(folder: Path, record: ProgramRecord) -> list[Refusal]:
    found = []
    for name, digest in record.files.items():
        path = folder / name
        if not path.is_file():
            found.append(Refusal(what=f"program/{name} is missing", firm=True, remedy="Build again."))
        elif sha256_file(path) != digest:
            found.append(
                Refusal(what=f"program/{name} was altered after it was captured", firm=True, remedy="Build again.")
            )
    return found


def _item_refusals(item: Item, record: ProgramRecord) -> list[Refusal]:
    value, label, found = item.manifest, item.label, []
    if value["status"] not in manifests.OK:
        error = (value["error"] or {}).get("message", "")
        what = f"{label} is not verified: {value['status']}" + (f" ({error})" if error else "")
        # Without a file there is nothing to except; an artifact that computes something else is no artifact.
        found.append(Refusal(what=what, firm=value["status"] != "unverified" or not value["files"]))
    if value["program"] != record.sha256:
        what = f"{label} was made from another program (hash {value['program'][:12]})"
        found.append(Refusal(what=what, firm=True, remedy="Build again."))
    judged = value.get("judged_by") or {}
    if judged.get("reference") != record.files[REFERENCE]:
        what = f"{label} was verified with other reference data than the program's: its evidence is old"
        found.append(Refusal(what=what, remedy="Build again."))
    if judged.get("code") != code_of(item.target):
        what = f"{label} was built and verified by other code than this checkout's: its evidence is old"
        found.append(Refusal(what=what, remedy="Build again."))
    found += _file_refusals(item)
    found += [r for run in item.measured if (r := _measurement_refusal(item, run)) is not None]
    return found


def _budget_refusals(item: Item) -> list[Refusal]:
    label, found = item.label, []
    if item.verdict == "FAIL":
        stops = "; ".join(_stops(b) for b in item.budgets if b["verdict"] == "FAIL")
        found.append(Refusal(what=f"{label} breaks its budget: {stops}"))
    elif item.verdict == "INCONCLUSIVE":
        stops = "; ".join(_stops(b) for b in item.budgets if b["verdict"] == "INCONCLUSIVE")
        found.append(Refusal(what=f"{label} is not shown to keep its budget: {stops}"))
    return found


def _file_refusals(item: Item) -> list[Refusal]:
    listed = {f["path"]: f for f in item.manifest["files"]}
    present = {str(p) for p in list_files(item.folder)} - {manifests.MANIFEST}
    found = []
    for name in sorted(present | set(listed)):
        path = item.folder / name
        if name not in listed:
            what = f"{item.label}: '{name}' does not belong to it"
        elif name not in present:
            what = f"{item.label}: '{name}' is missing"
        elif (
            path.is_symlink()
            or path.stat().st_size != listed[name]["bytes"]
            or sha256_file(path) != listed[name]["sha256"]
        ):
            what = f"{item.label}: '{name}' was altered after it was verified"
        else:
            continue
        found.append(Refusal(what=what, firm=True, remedy="Build again."))
    return found


def _measurement_refusal(item: Item, run: Measured) -> Refusal | None:
    """A measurement counts by what it measured, not by its date: an artifact built again has the same bytes."""
    value = item.manifest
    main = next((f["sha256"] for f in value["files"] if f["path"] == value["main"]), None)
    if run.artifact == main:
        return None
    path = item.folder / value["main"]
    built = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(path.stat().st_mtime)) if path.exists() else ""
    older = "it is older than the artifact, and " if run.started < built else ""
    what = (
        f"{item.label}: the newest measurement on {run.device} ({run.started}) does not count: {older}it is of other "
        f"bytes (sha256 {run.artifact[:12]}, the artifact's is {(main or 'none')[:12]})"
    )
    return Refusal(what=what, remedy="Measure again, or leave --results out.")
