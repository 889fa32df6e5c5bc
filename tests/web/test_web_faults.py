"""What goes wrong in a page: each is said, and the next measurement has a fresh page."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build.errors import DeviceError, HarnessError
from device_bench import measurement
from device_bench.__main__ import main
from device_bench.contract import Task
from device_bench.platforms import web
from device_bench.web.chromium import Chromium
from tests.web.conftest import Lab, command
from tests.web.support import QUICK, artifact, data_of, hiding, make_out, put, put_with_weights_beside


def _crash(page: Any) -> None:
    """End the processes that render pages: the browser sees each as crashed."""
    page.wait_for_selector("body[data-state=running]")
    session = page.context.browser.new_browser_cdp_session()
    for process in session.send("SystemInfo.getProcessInfo")["processInfo"]:
        if process["type"] == "renderer":
            os.kill(process["id"], signal.SIGKILL)


def _close(page: Any) -> None:
    page.close()


def _hang(page: Any) -> None:
    page.evaluate("setTimeout(() => { for (;;); }, 0)")


def _leave(page: Any) -> None:
    page.wait_for_selector("body[data-state=running]")
    page.goto("about:blank")


@pytest.mark.parametrize(
    ("disturb", "timeout", "words"),
    [
        (_crash, 200, "the page crashed"),
        (_close, 200, "the page was closed before it had finished"),
        (_hang, 6, "had not finished after 6 s"),
        (_leave, 200, "left before it had finished"),
    ],
)
def test_a_page_that_does_not_finish(lab: Lab, disturb: Any, timeout: float, words: str) -> None:
    """Only a page that hangs is waited for: the others end long before, on any machine."""
    long = replace(QUICK, min_seconds=250.0, max_seconds=300.0)
    with pytest.raises(HarnessError, match=words):
        lab.measure(settings=long, evaluate=False, timeout=timeout, disturb=disturb)
    assert lab.measure(evaluate=False).result["status"] == "ok"


def test_a_browser_that_ends_is_started_again(lab: Lab) -> None:
    with pytest.raises(HarnessError, match=r"browser was lost|was closed|crashed"):
        lab.measure(disturb=lambda page: page.context.browser.close())
    assert lab.measure(evaluate=False).result["status"] == "ok"


@pytest.mark.parametrize(("target", "words"), [("ort_web", "load"), ("litert", "load")])
def test_a_model_that_does_not_load(lab: Lab, tmp_path: Path, target: str, words: str) -> None:
    out = make_out(tmp_path / "out")
    put(out, artifact(out, target).record, target, "fp32", content=b"no model of any kind" * 100)
    with pytest.raises(HarnessError, match=f"the engine failed: {words}: "):
        lab.measure(target, out=out)
    assert lab.measure(target, evaluate=False).result["status"] == "ok"


def test_weights_beside_the_model_come_with_it(lab: Lab, tmp_path: Path) -> None:
    out = make_out(tmp_path / "out")
    weights = put_with_weights_beside(out, artifact(out).record)
    assert weights.stat().st_size > artifact(out).file.stat().st_size
    apart, whole = lab.measure(out=out), lab.measure()
    assert apart.outputs is not None
    assert whole.outputs is not None
    for call, values in whole.outputs.items():
        assert apart.outputs[call]["logits"].tobytes() == values["logits"].tobytes()
    found, data = artifact(out), data_of(out, artifact(out))
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(HarnessError, match=r"'model.onnx.data' did not arrive as it was built"):
        lab.harness.measure(Task(artifact=found, data=data, settings=QUICK, variant="wasm", timeout=300))


def test_bytes_that_changed_on_the_way_are_refused(lab: Lab, tmp_path: Path) -> None:
    out = make_out(tmp_path / "out")
    found = artifact(out)
    found.file.write_bytes(found.file.read_bytes()[:-1] + b"!")
    with pytest.raises(HarnessError, match="did not arrive as it was built"):
        lab.harness.measure(Task(artifact=found, data=data_of(out, found), settings=QUICK, variant="wasm", timeout=300))


def test_inputs_outside_the_models_bounds_are_refused_in_the_page(lab: Lab, tmp_path: Path) -> None:
    """The runtime itself would take 65 images: the bound is the program's."""
    from safetensors.numpy import load_file, save_file

    out = make_out(tmp_path / "out")
    found = artifact(out)
    data = data_of(out, found)
    tensors = load_file(data.file)
    image = tensors["timed/in/image"]
    save_file({**tensors, "timed/in/image": image.repeat(65, axis=0)}, data.file)
    with pytest.raises(HarnessError, match=r"tensors: dimension 0 of 'image' is 65, not in 1\.\.64"):
        lab.harness.measure(Task(artifact=found, data=data, settings=QUICK, variant="wasm", timeout=300))


def test_more_threads_than_litert_has_are_refused(lab: Lab) -> None:
    with pytest.raises(HarnessError, match="threads in this browser, 64 were asked for"):
        lab.measure("litert", settings=replace(QUICK, threads=64), evaluate=False)


def test_threads_without_isolation_are_refused(lab: Lab) -> None:
    """ONNX Runtime Web would go on with one thread, and say so nowhere."""
    kept = dict(lab.server.headers)
    for name in ("Cross-Origin-Opener-Policy", "Cross-Origin-Embedder-Policy"):
        del lab.server.headers[name]
    try:
        with pytest.raises(HarnessError, match=r"2 threads were asked for, the runtime uses 1: .* not cross-origin"):
            lab.measure(settings=replace(QUICK, threads=2), evaluate=False)
        alone = lab.measure(evaluate=False)
    finally:
        lab.server.headers.update(kept)
    assert alone.details["cross_origin_isolated"] is False
    assert alone.result["timer_step_ns"] >= 50_000


@pytest.mark.parametrize("stage", ["first", "timing"])
def test_a_page_that_is_hidden_is_not_measured(lab: Lab, stage: str) -> None:
    """For a moment only: browsers slow a page down that nobody sees."""

    def hide(page: Any) -> None:
        page.evaluate(hiding(stage))

    words = r"^the page was hidden during the measurement: bring it to the front \(and keep the phone's screen on\)"
    with pytest.raises(HarnessError, match=words):
        lab.measure(settings=replace(QUICK, min_seconds=2), disturb=hide)
    seen = lab.measure(evaluate=False)
    assert seen.details["hidden"] is False


def test_a_result_of_a_hidden_page_is_not_taken_whatever_it_says(lab: Lab) -> None:
    def forge(page: Any) -> None:
        page.evaluate(
            """() => {
              const real = fetch;
              self.fetch = (url, more) => {
                if (!String(url).endsWith('/result')) return real(url, more);
                const result = JSON.parse(more.body);
                result.details.hidden = true;
                return real(url, { ...more, body: JSON.stringify(result) });
              };
            }"""
        )

    with pytest.raises(HarnessError, match="the page was hidden during the measurement"):
        lab.measure(settings=replace(QUICK, min_seconds=2), evaluate=False, disturb=forge)


#: the last value of what a page sends becomes another one.
_OTHER_OUTPUTS = """() => {
  const real = fetch;
  self.fetch = async (url, more) => {
    if (!String(url).endsWith('/outputs')) return real(url, more);
    const bytes = new Uint8Array(await more.body.arrayBuffer());
    bytes[bytes.length - 1] ^= 0x40;
    return real(url, { ...more, body: new Blob([bytes]) });
  };
}"""


def _run(
    out: Path, results: Path, monkeypatch: pytest.MonkeyPatch, disturb: Any, *more: str
) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """A whole run, with something done to its first page. Returns exit code, measurements, the summary's rows."""
    left = [disturb]

    class Disturbed(Chromium):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, watch=lambda page: left.pop()(page) if left else None)

    monkeypatch.setattr(web, "Chromium", Disturbed)
    monkeypatch.setenv("EDGEPORT_PYTHON", os.environ.get("EDGEPORT_PYTHON", sys.executable))
    code = main(command(out, results, *more)[3:])
    found = [measurement.read(p) for p in sorted(results.glob("run-*/*/*.json"))]
    (summary,) = results.glob("run-*/summary.json")
    return code, found, json.loads(summary.read_text())["rows"]


def test_an_output_that_changes_fails_its_budget(
    browser_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that sends other outputs than its model computes: flagged, and a FAIL however fast it was."""
    out = make_out(tmp_path / "out", budgets=({"platform": "web", "device_class": "*", "p95_ms": 1e9},))
    change = ("--targets", "ort_web", "--min-seconds", "2")
    code, (found,), (row,) = _run(out, tmp_path / "r", monkeypatch, lambda p: p.evaluate(_OTHER_OUTPUTS), *change)
    assert code != 0
    assert found["status"] == "ok", found["error"]
    assert found["host"]["flagged"]
    assert row["verdict"]["word"] == "FAIL"
    assert any("its outputs differ from this host's" in r for r in row["verdict"]["reasons"])


def test_a_tab_that_crashes_costs_its_own_measurement_only(
    browser_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = make_out(tmp_path / "out")
    two = ("--targets", "ort_web", "--precisions", "fp32,int8-static", "--min-seconds", "5")
    code, found, rows = _run(out, tmp_path / "r", monkeypatch, _crash, *two)
    assert code == 8
    assert len(rows) == 2
    first, second = sorted(found, key=lambda m: m["settings"]["position"])
    assert (first["status"], first["error"]["code"]) == ("failed", "harness-failed")
    assert "the page crashed" in first["error"]["message"]
    assert second["status"] == "ok", second["error"]
    assert second["accuracy"]["calls"] == 24
    assert second["measurement"]["precision"] != first["measurement"]["precision"]


def test_a_result_of_another_job_is_rejected(lab: Lab) -> None:
    def forge(page: Any) -> None:
        body = json.dumps({"schema_version": 1, "end": "edgeport-end-of-run", "job": "another"})
        page.evaluate("(body) => fetch('result', { method: 'POST', body })", body)

    with pytest.raises(DeviceError, match=r"does not keep to its schema|of another job"):
        lab.measure(evaluate=False, disturb=forge)
