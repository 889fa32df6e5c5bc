"""What a blame run says: the table of nodes, the culprit, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from build.blame.culprit import UNEVEN, Measured, culprit, divergence_limit, drops
from targets.precisions import PRECISIONS

SCHEMA_VERSION = 1
_HEAD = ("node", "layer", "SNR dB", "channel dB", "lost dB", "max diff", "source")


def to_json(measured: Sequence[Measured], row: Mapping[str, str]) -> dict[str, Any]:
    """``{"schema_version", "model", "target", "precision", "diverged", "culprit", "advice", "nodes"}``."""
    lost = drops(measured, row["precision"])
    found = culprit(measured, row["precision"])
    limit = divergence_limit(row["precision"])
    return {
        "schema_version": SCHEMA_VERSION,
        **row,
        "diverged": any(m.channel_snr_db < limit for m in measured if not m.error),
        "culprit": found.point.name if found else None,
        "advice": advice(found, row["precision"]) if found else [],
        "nodes": [
            {
                "name": m.point.name,
                "shown": m.point.shown,
                "op": m.point.op,
                "layer": m.point.layer,
                "source": m.point.source,
                "snr_db": _number(m.snr_db),
                "channel_snr_db": _number(m.channel_snr_db),
                "lost_db": _number(lost.get(m.point.name, math.nan)),
                "max_abs_diff": _number(m.max_abs),
                "channel_spread": _number(m.spread),
                "error": m.error or None,
            }
            for m in measured
        ],
    }


def _number(value: float) -> float | None:
    """JSON has no infinity: equal values have a null SNR."""
    return round(value, 6) if math.isfinite(value) else None


def advice(found: Measured, precision: str) -> list[str]:
    """What may mend the culprit, the likeliest first."""
    name = found.point.name
    if not PRECISIONS[precision].quantized:
        return [
            f"report it: {precision} must compute what PyTorch computes",
            "replace the op in the model by others with the same result",
        ]
    lines = [f"keep it in float: --keep-float {name} (or --auto-mixed, which finds the fewest such nodes)"]
    if found.spread > UNEVEN:
        lines.append(
            f"its channels' ranges differ {found.spread:.0f} times, which one 8-bit scale cannot hold: rescale them in "
            "the model (cross-layer equalisation), or use weights per channel with activations in float (int8-weight)"
        )
    if PRECISIONS[precision].calibrated:
        lines.append(
            "give other calibration data (--calibration FILE): a range that is too wide or too narrow does this"
        )
    return lines


def text(value: Mapping[str, Any]) -> str:
    """The report for people."""
    rows = [_HEAD, *(_cells(n) for n in value["nodes"])]
    widths = [max(len(r[i]) for r in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    if value["culprit"] is None:
        lines.append("no node loses more than one bit: nothing to blame")
        return "\n".join(lines)
    node = next(n for n in value["nodes"] if n["name"] == value["culprit"])
    where = f" at {node['source']}" if node["source"] else ""
    layer = f", layer {node['layer']}" if node["layer"] else ""
    said = "culprit" if value["diverged"] else "no value diverges; most is lost in"
    lines.append(f"{said}: {node['name']} ({node['op']}{layer}){where}")
    lines += [f"  {line}" for line in value["advice"]]
    return "\n".join(lines)


def _cells(node: Mapping[str, Any]) -> tuple[str, ...]:
    if node["error"]:
        return (node["name"], node["layer"] or node["op"], "-", "-", "-", "-", f"not measured: {node['error']}")
    snr, channel = ("equal" if node[k] is None else f"{node[k]:.1f}" for k in ("snr_db", "channel_snr_db"))
    lost, worst = (node[k] or 0.0 for k in ("lost_db", "max_abs_diff"))
    return (
        node["name"],
        node["layer"] or node["op"],
        snr,
        channel,
        f"{lost:.1f}",
        f"{worst:.2e}",
        node["source"] or "",
    )
