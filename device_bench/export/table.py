"""One row per measurement: CSV and Parquet. CSV needs the standard library only, Parquet pyarrow."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from build.errors import MissingToolError
from device_bench.store import Measurement, ResultStore, plain

#: what a spreadsheet takes for the beginning of a formula (OWASP, "CSV Injection"), full-width forms included.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_LONGEST = 1000
#: column -> its type, and how it is read off a measurement.
COLUMNS: dict[str, type] = {
    **dict.fromkeys(("run", "device", "model", "target", "precision", "variant", "status", "started", "finished"), str),
    **dict.fromkeys(("threads", "batch", "repeat", "artifact_bytes", "samples"), int),
    **dict.fromkeys(("emulated",), bool),
    **dict.fromkeys(("artifact_sha256", "artifact_key", "program", "runtime", "runtime_version", "harness"), str),
    **dict.fromkeys(("device_kind", "device_model", "soc", "os", "arch"), str),
    **dict.fromkeys(
        ("min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms", "stdev_ms", "spread", "drift"), float
    ),
    **dict.fromkeys(("per_second", "load_ms", "first_ms", "peak_mb", "max_abs_diff"), float),
    "metric": str,
    **dict.fromkeys(("metric_value", "metric_reference"), float),
    **dict.fromkeys(("decisions", "changed_decisions", "near_ties"), int),
    **dict.fromkeys(("doubts", "warnings", "error"), str),
}


def row(m: Measurement) -> dict[str, Any]:
    """The columns of a measurement; every text is one line that cannot act on a terminal."""
    facts = m.facts
    name, value, reference = m.metric or (None, None, None)
    cells: dict[str, Any] = {
        **{k: v for k, v in m.key.to_json().items() if k in COLUMNS},
        **{k: getattr(m, k) for k in COLUMNS if hasattr(m, k)},
        "status": "ok" if m.ok else "failed",
        "runtime": (facts.runtime or {}).get("name"),
        "runtime_version": (facts.runtime or {}).get("version"),
        "harness": (facts.harness or {}).get("version"),
        "device_kind": facts.device.get("kind"),
        "device_model": facts.device.get("model"),
        "soc": facts.device.get("soc"),
        "os": facts.device.get("os"),
        "arch": facts.device.get("arch"),
        "metric": name,
        "metric_value": value,
        "metric_reference": reference,
        "doubts": "; ".join(m.doubts),
        "warnings": ", ".join(w["code"] for w in m.warnings),
        "error": None if m.error is None else f"{m.error['code']}: {m.error['message']}",
    }
    return {k: plain(cells[k], _LONGEST) if isinstance(cells[k], str) else cells[k] for k in COLUMNS}


def to_csv(measurements: Iterable[Measurement]) -> str:
    """CSV as of RFC 4180 with a header. A text that a spreadsheet would run begins with an apostrophe."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(COLUMNS)
    for m in measurements:
        writer.writerow([_cell(v) for v in row(m).values()])
    return stream.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value


def write_parquet(path: Path, measurements: Iterable[Measurement], samples_of: ResultStore | None) -> None:
    """Parquet with the same columns, typed.

    Args:
        path: a file that is moved into place afterwards.
        samples_of: where raw samples are read from, for a column ``samples_ns``; None: without.

    Raises:
        MissingToolError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingToolError("Parquet needs pyarrow", remedy="Run it as: nox -s export") from error
    types: Mapping[type, Any] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    fields = [pa.field(name, types[kind]) for name, kind in COLUMNS.items()]
    if samples_of is not None:
        fields.append(pa.field("samples_ns", pa.list_(pa.int64())))
    schema = pa.schema(fields)
    found = list(measurements)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for at in range(0, len(found), 1000) or (0,):  # an empty table has its columns too
            rows = [row(m) for m in found[at : at + 1000]]
            if samples_of is not None:
                rows = [{**r, "samples_ns": samples_of.samples(m)} for r, m in zip(rows, found[at:], strict=False)]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
