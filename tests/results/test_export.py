"""Results for other tools: each format is read back by a reader of that format."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import pytest

from device_bench.export.__main__ import FORMATS, main
from device_bench.export.table import COLUMNS
from tests.results import measurements as made
from tests.results.measurements import LATER, NEW, OLD


@pytest.fixture
def results(tmp_path: Path) -> Path:
    place = tmp_path / "results"
    made.write_repeats(place, OLD, [made.normal(seed=s) for s in range(3)])
    made.write_repeats(place, NEW, [made.normal(seed=s, ms=20) for s in range(2)], started=LATER)
    made.write(place, NEW, made.failed(target="executorch", started=LATER))
    made.write(place, NEW, made.measurement(device=made.HOSTILE, started=LATER, batch=4, variant="wasm"))
    return place


def export(results: Path, form: str, *arguments: str) -> Path:
    file = results.parent / f"exported.{form}"
    assert main(["--format", form, str(file), "--results", str(results), *arguments]) == 0
    return file


def test_csv(results: Path) -> None:
    content = export(results, "csv").read_bytes().decode()
    rows = list(csv.DictReader(content.splitlines()))
    assert len(rows) == 7
    assert list(rows[0]) == list(COLUMNS)
    first = rows[0]
    assert (first["run"], first["device"], first["status"], first["emulated"]) == (OLD, "pixel-7", "ok", "false")
    assert float(first["p50_ms"]) == pytest.approx(10, rel=0.02)
    failed = next(r for r in rows if r["status"] == "failed")
    assert (failed["error"], failed["p50_ms"]) == ("device-lost: the connection broke", "")
    assert all(c.isprintable() or c in "\r\n" for c in content)
    assert len(content.splitlines()) == 8


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1+cmd", "@SUM(A1)", "\t=1", "＝1", "\r=1"])
def test_no_spreadsheet_runs_a_name(tmp_path: Path, name: str) -> None:
    made.write(tmp_path / "results", OLD, made.measurement(device=name))
    (row,) = csv.DictReader(export(tmp_path / "results", "csv").read_text().splitlines())
    assert row["device"][0] in "'\\"


def test_parquet(results: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(export(results, "parquet", "--samples"))
    rows = table.to_pylist()
    assert table.num_rows == 7
    assert str(table.schema.field("p95_ms").type) == "double"
    assert [len(r["samples_ns"]) for r in rows] == [200, 200, 200, 0, 200, 200, 200]
    assert rows[3]["p50_ms"] is None
    assert "samples_ns" not in pq.read_table(export(results, "parquet")).column_names


def test_junit(results: Path) -> None:
    rows = [made.summary_row("FAIL", ["p95 is 20.900 ms, the budget is 12"])]
    rows.append(made.summary_row("INCONCLUSIVE", ["]]>\x1b[31m<script>"], device=made.HOSTILE, batch=4, variant="wasm"))
    (results / NEW / "summary.json").write_text(json.dumps(made.summary(NEW, rows)))
    root = xml.parse(export(results, "junit")).getroot()
    assert root.tag == "testsuites"
    assert {k: root.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
    }
    (suite,) = root
    assert (suite.get("name"), suite.get("timestamp")) == (NEW, "2026-11-02T10:00:00")
    found = {case.get("name"): [e.tag for e in case if e.tag != "properties"] for case in suite}
    assert found == {
        "executorch fp32, 1 thread": ["error"],
        "litert fp32, 1 thread": ["failure"],
        "litert fp32, 1 thread, batch 4, wasm": ["skipped"],
    }
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.get("message") == "p95 is 20.900 ms, the budget is 12"
    old = xml.parse(export(results, "junit", "--run", OLD)).getroot()
    assert (old.get("tests"), old.get("failures")) == ("1", "0")


def test_openmetrics(results: Path) -> None:
    from prometheus_client.openmetrics import parser

    read: Any = parser.text_string_to_metric_families

    text = export(results, "openmetrics").read_text()
    families = {f.name: f for f in read(text)}
    assert families["edgeport_inference_seconds"].type == "summary"
    quantiles = {
        (s.labels["device"], s.labels["quantile"]): s.value
        for s in families["edgeport_inference_seconds"].samples
        if "quantile" in s.labels
    }
    assert quantiles["pixel-7", "0.5"] == pytest.approx(0.020, rel=0.02)  # of the newest run
    counts = [s.value for s in families["edgeport_inference_seconds"].samples if s.name.endswith("_count")]
    assert sorted(counts) == [200, 400]
    failed = {s.labels["target"]: s.value for s in families["edgeport_failed_repeats"].samples}
    assert failed["executorch"] == 1
    assert {s.labels["run"] for s in families["edgeport_result"].samples} == {NEW}
    assert {s.labels["metric"] for s in families["edgeport_task_metric"].samples} == {"top1_accuracy"}
    assert text.endswith("# EOF\n")


_LATENCIES = (
    *("avg_ms", "min_ms", "max_ms", "stddev_ms", "median_ms", "p5_ms", "p95_ms"),
    *("init_ms", "first_inference_ms", "average_warm_up_ms"),
)
#: message -> field -> (number, type) of tensorflow/lite/tools/benchmark/proto/benchmark_result.proto
PROTO: dict[str, dict[str, tuple[int, str]]] = {
    "LatencyMetrics": {name: (number, "float") for number, name in enumerate(_LATENCIES, 1)},
    "MemoryMetrics": {
        "init_footprint_kb": (1, "int64"),
        "overall_footprint_kb": (2, "int64"),
        "peak_mem_mb": (3, "float"),
    },
    "MiscMetrics": {
        "model_size_mb": (1, "float"),
        "num_runs": (2, "int32"),
        "num_warmup_runs": (3, "int32"),
        "model_throughput_in_mb_per_sec": (4, "float"),
    },
    "BenchmarkResult": {
        "name": (1, "string"),
        "latency_metrics": (2, "LatencyMetrics"),
        "memory_metrics": (3, "MemoryMetrics"),
        "misc_metrics": (4, "MiscMetrics"),
    },
}


def _message_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    scalars = {"float": field.TYPE_FLOAT, "int64": field.TYPE_INT64, "int32": field.TYPE_INT32}
    file = descriptor_pb2.FileDescriptorProto(name="b.proto", package="t", syntax="proto2")
    for message, fields in PROTO.items():
        one = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            added = one.field.add(name=name, number=number, label=field.LABEL_OPTIONAL)
            added.type = {**scalars, "string": field.TYPE_STRING}.get(kind, field.TYPE_MESSAGE)
            if kind in PROTO:
                added.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.BenchmarkResult"))


def test_tflite_json_is_what_protobuf_reads(results: Path) -> None:
    from google.protobuf import json_format

    message = _message_class()
    found = json.loads(export(results, "tflite").read_text())
    assert len(found) == 6  # the failed one has no figures
    for value in found:
        parsed = json_format.ParseDict(value, message())
        assert parsed.misc_metrics.num_runs == 200
        assert parsed.latency_metrics.p5_ms < parsed.latency_metrics.median_ms < parsed.latency_metrics.p95_ms
        assert parsed.latency_metrics.average_warm_up_ms == 100
        assert parsed.name.isprintable()
    assert found[0]["misc_metrics"]["model_size_mb"] == 0.068


@pytest.mark.parametrize("form", [f for f in FORMATS if f != "parquet"])
def test_hostile_text_is_harmless_in_every_format(results: Path, form: str) -> None:
    text = export(results, form).read_text()
    assert all(c.isprintable() or c == "\n" for c in text)
    if form == "junit":
        assert "<script" not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "xlsx", "f"], "invalid choice"),
        (["f"], "required: --format"),
        (["--format", "csv"], "required: FILE"),
        (["--format", "csv", "f", "--run", "run-1"], "there is no run 'run-1'"),
        (["--format", "csv", "f", "--device", "another"], "nothing to export"),
        (["--format", "csv", "f", "--samples"], "no place for raw samples"),
        (["--format", "csv", "f", "--since", "today"], "no date"),
    ],
)
def test_what_cannot_be_exported_is_one_clear_line(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--results", str(results)]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("form", list(FORMATS))
def test_results_are_never_replaced(results: Path, capsys: Any, form: str) -> None:
    files = [results / OLD / "run.json", results / OLD / "pixel-7" / "new.csv", results / "run-9" / "x"]
    before = files[0].read_bytes()
    for file in (*files, results / ".index.sqlite", results / "manifests" / "x.json"):
        assert main(["--format", form, str(file), "--results", str(results)]) == 2
        assert "lies among the results" in capsys.readouterr().err.splitlines()[0]
    assert main(["--format", form, str(files[0]), "--results", str(results.parent)]) == 2
    assert files[0].read_bytes() == before
    assert not files[1].exists()
    assert not files[2].exists()


def test_impossible_times_do_not_break_an_export(results: Path, capsys: Any) -> None:
    made.write_record(results, OLD, started="2026-99-99T99:99:99Z")
    made.write(results, NEW, made.measurement(started="2026-99-99T99:99:99Z", threads=3))
    root = xml.parse(export(results, "junit")).getroot()
    assert root.get("tests") == "3"
    assert capsys.readouterr().err.count("not a time in UTC") == 2
