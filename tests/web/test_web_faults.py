"""What goes wrong in a page: each is said, and the next measurement has a fresh page."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build.errors import DeviceError, HarnessError
from device_bench.contract import Task
from tests.web.conftest import Lab
from tests.web.support import QUICK, artifact, data_of, make_out, put, put_with_weights_beside


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


def test_an_output_that_changes_is_flagged_and_not_just_recorded(lab: Lab) -> None:
    """A page that sends other outputs than its model computes: the comparison with this host says so."""
    from device_bench.accuracy import against_host

    run = lab.measure()
    assert run.outputs is not None
    record = artifact(lab.out).record
    wrong = {call: {n: v + 0.5 for n, v in values.items()} for call, values in run.outputs.items()}
    assert not against_host(record, "fp32", run.outputs, run.outputs)["flagged"]
    assert against_host(record, "fp32", wrong, run.outputs)["flagged"]


def test_a_result_of_another_job_is_rejected(lab: Lab) -> None:
    def forge(page: Any) -> None:
        body = json.dumps({"schema_version": 1, "end": "edgeport-end-of-run", "job": "another"})
        page.evaluate("(body) => fetch('result', { method: 'POST', body })", body)

    with pytest.raises(DeviceError, match=r"does not keep to its schema|of another job"):
        lab.measure(evaluate=False, disturb=forge)
