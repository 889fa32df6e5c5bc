"""What a blame run says: the table of nodes, the culprit, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from build.blame.culprit import UNEVEN, Measured, culprit, divergence_limit, drops
from build.manifest import NO_SIGNAL_DB, snr_to_json
from targets.precisions import PRECISIONS

SCHEMA_VERSION = 1
_HEAD = ("node", "layer", "SNR dB", "channel dB", "lost dB", "NaN/inf", "max diff", "source")


def to_json(
    measured: Sequence[Measured],
    row: Mapping[str, str],
    *,
    keep_float: Sequence[str] = (),
    own_quantisation: bool = False,
) -> dict[str, Any]:
    """``{"schema_version", "model", "target", "precision", "kept_float", "diverged", "culprit", "advice", "nodes"}``.

    A node's SNRs are over the elements that are finite on both sides: null when they are equal, or not measured
    (``error`` says why); -9999 when PyTorch's are all zero and the artifact's are not. ``nonfinite`` counts the
    elements whose NaN or infinity differs.

    Args:
        keep_float: nodes that were in float.
        own_quantisation: the program is quantised already.
    """
    lost = drops(measured, row["precision"])
    found = culprit(measured, row["precision"])
    limit = divergence_limit(row["precision"])
    return {
        "schema_version": SCHEMA_VERSION,
        **row,
        "kept_float": list(keep_float),
        "diverged": any(m.worth_db < limit for m in measured if not m.error),
        "culprit": found.point.name if found else None,
        "advice": advice(found, row["precision"], keep_float, own_quantisation=own_quantisation) if found else [],
        "nodes": [
            {
                "name": m.point.name,
                "shown": m.point.shown,
                "op": m.point.op,
                "layer": m.point.layer,
                "source": m.point.source,
                "snr_db": None if m.error else snr_to_json(round(m.snr_db, 6)),
                "channel_snr_db": None if m.error else snr_to_json(round(m.channel_snr_db, 6)),
                "lost_db": None if m.error else _number(lost[m.point.name]),
                "nonfinite": m.nonfinite,
                "max_abs_diff": _number(m.max_abs),
                "channel_spread": _number(m.spread),
                "error": m.error or None,
            }
            for m in measured
        ],
    }


def _number(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return round(value, 6) if math.isfinite(value) else None


def advice(
    found: Measured, precision: str, keep_float: Sequence[str] = (), *, own_quantisation: bool = False
) -> list[str]:
    """What may mend the culprit, the likeliest first."""
    name = found.point.name
    if not PRECISIONS[precision].quantized:
        return [
            f"report it: {precision} must compute what PyTorch computes",
            "replace the op in the model by others with the same result",
        ]
    if own_quantisation:
        layer = found.point.layer
        return [
            f"the program brings its own quantisation: change the recipe of {f'layer {layer}' if layer else 'this op'} "
            "where it is made (leave it in float, or give it weights per channel or another range), and export again",
        ]
    names = " ".join([*keep_float, name])
    lines = [f"keep it in float: --keep-float {names} (or --auto-mixed, which looks for a small set of such nodes)"]
    if name in keep_float:
        lines = ["it is in float already: keep the nodes in float that make what it reads"]
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
    missing = [n["error"] for n in value["nodes"] if n["error"]]
    if missing:
        lines.append(f"{len(missing)} of {len(value['nodes'])} nodes could not be measured, the first: {missing[0]}")
    if value["culprit"] is None:
        which = "node that could be measured" if missing else "node"
        lines.append(f"no {which} loses more than one bit: nothing {'else ' if missing else ''}to blame")
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
        return (node["name"], node["layer"] or node["op"], *["-"] * 5, f"not measured: {node['error']}")
    snr, channel = (_decibels(node[k], node["nonfinite"]) for k in ("snr_db", "channel_snr_db"))
    lost, worst = (node[k] or 0.0 for k in ("lost_db", "max_abs_diff"))
    return (
        node["name"],
        node["layer"] or node["op"],
        snr,
        channel,
        f"{lost:.1f}",
        str(node["nonfinite"]),
        f"{worst:.2e}",
        node["source"] or "",
    )


def _decibels(value: float | None, nonfinite: int) -> str:
    if value is None:
        return "rest equal" if nonfinite else "equal"
    return "-inf" if value == NO_SIGNAL_DB else f"{value:.1f}"
