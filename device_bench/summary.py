"""What a lab run comes to: a verdict per artifact and device, the table, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import budgets
from build.budgets import from_mapping, read_budgets
from build.errors import DeviceError, GateError, RejectedResultError
from build.record import ProgramRecord
from device_bench import measurement
from device_bench.job import BATCH, evaluation_calls
from device_bench.lab import Work
from device_bench.measurement import Cell
from device_bench.options import LabOptions
from device_bench.points import Point
from device_bench.sustained import analyse
from device_bench.sweep import largest_batches, sweep_lines
from device_bench.verdict import judge
from models.spec import Budget

SCHEMA_VERSION = 1
#: share of the time asked for, from which on a sustained run counts as whole.
_WHOLE = 0.98
_COLUMNS = "device,model,target,precision,threads,batch,way,repeats,p50 ms,p95 ms,per s,peak MiB,metric,host,verdict"


def rows(work: Work, devices: Sequence[str]) -> list[dict[str, Any]]:
    """One row per device and artifact, read back from the files of the run."""
    found = []
    for device in devices:
        groups: dict[str, list[Cell]] = {}
        for cell in sorted(work.cells(device), key=lambda c: (c.artifact.label, c.point.order, c.repeat)):
            groups.setdefault(cell.group, []).append(cell)
        for cells in groups.values():
            found.append(_row(work, device, cells))
    return found


def _row(work: Work, device: str, cells: Sequence[Cell]) -> dict[str, Any]:
    artifact = cells[0].artifact
    measured, missing = [], []
    for cell in cells:
        value = _read(work.folder / cell.file, cell)
        measured += [value] if value is not None else []
        missing += [] if value is not None else [cell.file]
    platform = work.platform.PLATFORM
    p95, peak = _limits(work.options, platform, artifact.record.budgets)
    # A limit is of the call as the model's spec has it: the other points of a sweep over batches break none.
    batches = {p.batch for p in work.options.points}
    swept = len(batches) > 1 or (work.options.keep_p95_ms is not None and None not in batches)
    limit = None if swept else p95
    verdict = judge(measured, repeats=work.options.repeats, p95_ms=limit, peak_mb=peak, rules=work.options.rules)
    # Why times do not count, whatever limits there are: a verdict on memory alone leaves that out.
    doubts = judge(measured, repeats=work.options.repeats, rules=work.options.rules).reasons
    first = next((m for m in measured if m["status"] == "ok" and m["accuracy"]), None)
    return {
        "device": device,
        "model": artifact.model,
        "target": artifact.target,
        "precision": artifact.precision,
        **cells[0].point.to_json(),
        "artifact_sha256": artifact.sha256,
        "platform": platform,
        "device_class": work.options.device_class,
        "counts": not swept and not doubts,
        "doubts": list(doubts),
        "emulated": any(m["emulated"] for m in measured),
        "limits": {"p95_ms": p95, "peak_mb": peak},
        "verdict": verdict.to_json(),
        # What the runtime says it computes with; None where it does not say, or has no such threads (a GPU, Core ML).
        "runtime_threads": next((m["threads"]["runtime"] for m in measured if m["status"] == "ok"), None),
        "per_second": min((m["statistics"]["per_second"] for m in measured if m["status"] == "ok"), default=None),
        "sustained": sustained(work.options, measured),
        "accuracy": None if first is None else first["accuracy"],
        "host": None if first is None else first["host"],
        "checked_batches": [] if first is None else _checked_batches(artifact.record),
        "errors": [m["error"] for m in measured if m["status"] != "ok"],
        "warnings": _distinct(w for m in measured for w in m["warnings"]),
        "files": [c.file for c in cells if (work.folder / c.file).is_file()],
        "missing": missing,
    }


def _checked_batches(record: ProgramRecord) -> list[int]:
    """The batches of the calls whose outputs are compared; none where the program has no such dimension."""
    symbols = [s for s, name in record.symbols.items() if name == BATCH]
    return sorted({c.sizes[s] for c in evaluation_calls(record) for s in symbols if s in c.sizes})


def sustained(options: LabOptions, measured: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Peak and steady state of a sustained run; None for any other, or when it was not measured."""
    good = [m for m in measured if m["status"] == "ok"]
    if options.sustained is None or not good:
        return None
    found = analyse(good[0]["samples_ns"], loop_ns=good[0]["loop_ns"])
    return {"asked_seconds": 60 * options.sustained, **found.to_json()}


def sustained_line(value: Mapping[str, Any]) -> str:
    """For people."""
    began = value["throttled_at_s"]
    how = "no throttling" if value["throttled"] is False else "too few samples to tell whether it throttled"
    if value["throttled"]:
        how = f"{value['slowdown']:.0%} slower, from {began:.0f} s on"
    line = (
        f"sustained for {value['seconds']:.0f} s: peak p50 {value['peak']['p50_ms']:.3f} ms, steady "
        f"{value['steady']['p50_ms']:.3f} ms; {how}"
    )
    if value["seconds"] < _WHOLE * value["asked_seconds"]:
        line += f"; ended before {value['asked_seconds']:g} s, with as many samples as a harness keeps: raise --batch"
    return line


def _distinct(warnings: Any) -> list[dict[str, str]]:
    """One of each code: repeats warn of the same things."""
    return list({w["code"]: w for w in warnings}.values())


def _read(path: Path, cell: Cell) -> dict[str, Any] | None:
    """A cell's measurement, when it is whole and of the artifact that is measured now."""
    if not path.is_file():
        return None
    try:
        value = measurement.read(path)
    except RejectedResultError:
        return None
    return value if value["artifact"]["sha256"] == cell.artifact.sha256 else None


def _budgets(options: LabOptions, own: Sequence[Mapping[str, Any]]) -> list[Budget]:
    return read_budgets(options.budgets) if options.budgets else [from_mapping(b, "the model's budget") for b in own]


def check_class(options: LabOptions, records: Sequence[ProgramRecord]) -> None:
    """Before anything is measured: a class of devices is one that budgets are about.

    Raises:
        InputError: see :func:`build.budgets.check_class`.
    """
    budgets.check_class(options.device_class, [b for r in records for b in _budgets(options, r.budgets)])


def _limits(options: LabOptions, platform: str, own: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """The tightest of the budgets that apply."""
    classes = ("*", options.device_class)
    fitting = [b for b in _budgets(options, own) if b.platform in ("*", platform) and b.device_class in classes]
    p95 = min((b.p95_ms for b in fitting if b.p95_ms is not None), default=None)
    peak = min((b.peak_mb for b in fitting if b.peak_mb is not None), default=None)
    return p95, peak


def _cells(row: Mapping[str, Any], repeats: int) -> tuple[str, ...]:
    v = row["verdict"]
    metric = (row["accuracy"] or {}).get("metric")
    host = row["host"]
    return (
        row["device"],
        row["model"],
        row["target"],
        row["precision"],
        str(row["threads"]),
        "-" if row["batch"] is None else str(row["batch"]),
        row["variant"] or "-",
        f"{v['repeats']}/{repeats}",
        "-" if v["p50_ms"] is None else f"{v['p50_ms']:.3f}",
        "-" if v["p95_ms"] is None else f"{v['p95_ms']:.3f}",
        "-" if row["per_second"] is None else f"{row['per_second']:.1f}",
        "-" if v["peak_mb"] is None else f"{v['peak_mb']:.1f}",
        "-" if metric is None else f"{metric['value']:.4f}",
        "-" if host is None else "identical" if host["identical"] else f"{host['differing']} differ",
        v["word"] or "-",
    )


def place(row: Mapping[str, Any]) -> str:
    """What a line of text begins with: ``local-box digits_cnn litert fp32, 2 threads``."""
    point = Point(threads=row["threads"], batch=row["batch"], variant=row["variant"])
    return f"{row['device']} {row['model']} {row['target']} {row['precision']}{point.text}"


def table(found: Sequence[Mapping[str, Any]], repeats: int, keep_p95_ms: float | None = None) -> str:
    """Aligned text, with a line below for each reason, error and warning."""
    head = _COLUMNS.split(",")
    lines = [head, *(_cells(row, repeats) for row in found)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * w for w in widths))
    for row in found:
        where = place(row)
        word = row["verdict"]["word"] or "note"
        text += [f"{where}: {word}: {reason}" for reason in row["verdict"]["reasons"]]
        text += [f"{where}: {sustained_line(row['sustained'])}"] if row["sustained"] else []
        text += [f"{where}: failed: {e['code']}: {e['message']}" for e in row["errors"]]
        text += [f"{where}: warning: {w['message']}. {w['advice']}" for w in row["warnings"]]
        host = row["host"]
        if host is not None and not host["identical"]:
            named = ", ".join(host["differing_calls"][:3])
            text.append(
                f"{where}: {host['differing']} of {host['calls']} calls are not bit-identical with this host's "
                f"(largest difference {host['max_abs_diff']:.2e}; {named}, …)"
            )
    text += sweep_lines(largest_batches(found, keep_p95_ms))
    done = sum(row["verdict"]["repeats"] for row in found)
    text.append(f"{done} of {len(found) * repeats} measurements taken")
    return "\n".join(text)


def exit_code(found: Sequence[Mapping[str, Any]], options: LabOptions) -> int:
    """8 when a measurement is missing, 6 when a verdict is FAIL (or not PASS, with ``--require-pass``), else 0."""
    words = [row["verdict"]["word"] for row in found]
    if "FAIL" in words or (options.require_pass and "INCONCLUSIVE" in words):
        return GateError.exit_code
    if not found or any(row["verdict"]["repeats"] < options.repeats for row in found):
        return DeviceError.exit_code
    return 0


def to_json(folder: Path, options: LabOptions, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``summary.json``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "session": options.session,
        "run": folder.name,
        "seed": options.seed,
        "repeats": options.repeats,
        "rows": list(found),
        "sweep": largest_batches(found, options.keep_p95_ms),
    }
