"""JSON with the fields of TFLite's ``BenchmarkResult``, for teams whose dashboards read it. Standard library only.

The fields are those of ``tensorflow/lite/tools/benchmark/proto/benchmark_result.proto`` (package
``tflite.tools.benchmark``), by their names in the proto, which protobuf's JSON parsers take as well as lowerCamelCase.
One message per measurement, in a list. What we do not measure is left out, as an optional field may be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from device_bench.statistics import nearest_rank
from device_bench.store import Measurement, ResultStore, plain


def to_tflite(store: ResultStore, measurements: Iterable[Measurement]) -> str:
    """A JSON list; measurements that failed are left out."""
    return json.dumps([_message(store, m) for m in measurements if m.ok], indent=1, allow_nan=False) + "\n"


def _message(store: ResultStore, m: Measurement) -> dict[str, Any]:
    value = store.document(m)
    memory, warmup, figures = value["memory"], value["warmup"], value["statistics"]
    megabytes = m.artifact_bytes / 1e6  # as benchmark_model counts them
    latency = {
        "avg_ms": figures["mean_ms"],
        "min_ms": figures["min_ms"],
        "max_ms": figures["max_ms"],
        "stddev_ms": figures["stdev_ms"],
        "median_ms": figures["p50_ms"],
        "p5_ms": nearest_rank(sorted(value["samples_ns"]), 5) / 1e6,
        "p95_ms": figures["p95_ms"],
        "init_ms": value["load_ms"],
        "first_inference_ms": value["first_ms"],
    }
    if warmup["runs"]:
        latency["average_warm_up_ms"] = warmup["ns"] / warmup["runs"] / 1e6
    return {
        "name": plain(f"{m.key.label}, repeat {m.repeat}, {m.run}", 1000),
        "latency_metrics": latency,
        "memory_metrics": _memory(memory),
        "misc_metrics": {
            "model_size_mb": megabytes,
            "num_runs": m.samples,
            "num_warmup_runs": warmup["runs"],
            **({"model_throughput_in_mb_per_sec": megabytes / figures["mean_ms"] * 1e3} if figures["mean_ms"] else {}),
        },
    }


def _memory(memory: Mapping[str, Any]) -> dict[str, Any]:
    """What the place could tell; a browser tells nothing of it."""
    if any(memory[name] is None for name in ("rss_before_load", "rss_after_load", "peak_rss_end")):
        return {}
    return {
        "init_footprint_kb": (memory["rss_after_load"] - memory["rss_before_load"]) // 1024,
        "overall_footprint_kb": (memory["peak_rss_end"] - memory["rss_before_load"]) // 1024,
        "peak_mem_mb": memory["peak_mb"],
    }
