"""``nox -s bench-web-harness``: the web harness against a bare page's loop: same runtime, artifact and browser.

The bare pages below load the runtime, make the session and time ``run`` in a loop, as one writes it in a minute; of the
harness nothing is in them but what gives a .tflite its sizes. Harness and bare page take turns, so that what else the
machine does falls on both; the figure is the ratio of the medians of their p50. On a machine with other work the turns
of whole pages are too long for that: so the two loops also take turns in one page, on one session, in short blocks.
It prints what it finds, whether or not the aim is met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from build.cache import write_atomic
from build.entry import main as run_as_process
from build.errors import EdgeportError
from build.log import fail, say
from device_bench import artifacts
from device_bench.contract import Task
from device_bench.job import TIMED, Data, Settings, make_data
from device_bench.statistics import summarise
from device_bench.web import page
from device_bench.web.chromium import Chromium
from device_bench.web.harness import WebHarness, web_job
from device_bench.web.runtime import WEB, runtime
from device_bench.web.server import Server
from device_bench.web.ticket import Limits, Ticket

AIM = (0.95, 1.05)
_TIMEOUT = 600.0
_LOAD = {
    "ort_web": """
import * as ort from './MODULE';
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = { wasm: new URL('WASM', document.baseURI).href };
const session = await ort.InferenceSession.create(await get('model'), { executionProviders: ['wasm'] });
const x = new Float32Array((await get('input')).buffer);
const feeds = { [session.inputNames[0]]: new ort.Tensor('float32', x, SHAPE) };
const run = () => session.run(feeds);
const done = () => {};
""",
    "litert": """
import * as litert from './MODULE';
import { fixShapes } from './tflite.js';
await litert.loadLiteRt(new URL('FOLDER', document.baseURI).href, { threads: false });
const { bytes } = fixShapes(await get('model'), 'ENTRY', SIZES);
const model = await litert.loadAndCompile(bytes, { accelerator: 'wasm', cpuOptions: { numThreads: 1 } });
const x = new litert.Tensor(new Float32Array((await get('input')).buffer), SHAPE);
const run = () => model.run([x]);
const done = (result) => result.forEach((t) => t.delete());
""",
}
_BARE = """
async function bare(count) {
  const samples = [];
  for (let i = 0; i < count; i++) {
    const start = performance.now();
    const result = await run();
    samples.push(performance.now() - start);
    done(result);
  }
  return samples;
}
const send = (value) => fetch('result', { method: 'POST', body: JSON.stringify(value) });
"""
_ALONE = "await bare(WARMUP);\nawait send({ theirs: await bare(RUNS) });\n"
_IN_TURNS = """
import { measure } from './measure.js';
await bare(WARMUP);
const settings = { warmup_runs: 0, warmup_seconds: 0, min_seconds: 0, max_seconds: 600 };
Object.assign(settings, { min_runs: BLOCK, max_runs: BLOCK });
const ours = [];
const theirs = [];
for (let block = 0; block < (3 * RUNS) / BLOCK; block++) {
  for (const turn of block % 2 ? ['ours', 'theirs'] : ['theirs', 'ours']) {
    if (turn === 'theirs') theirs.push(...await bare(BLOCK));
    else ours.push(...(await measure(run, done, settings, async () => {})).samples_ns.map((ns) => ns / 1e6));
  }
}
await send({ ours, theirs });
"""
#: runs of a block, when the loops take turns.
_BLOCK = 5


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """p50 in ms of each round, and the ratio ours / theirs of their medians.

    Attributes:
        quiet_ratio: of the smallest p50 of each: what remains when other load is left out.
        loops_ratio: of the two loops' p50 when they take turns in one page.
    """

    model: str
    target: str
    precision: str
    batch: int | None
    ours_ms: tuple[float, ...]
    theirs_ms: tuple[float, ...]
    ratio: float
    quiet_ratio: float
    loops_ms: tuple[float, float]
    loops_ratio: float


def _script(artifact: artifacts.Artifact, data: Data, settings: Settings, last: str) -> tuple[str, bytes]:
    """A bare page's script, and its input's bytes."""
    from safetensors import safe_open

    engine = runtime(artifact.target, "wasm", 1)
    job = web_job(artifact, data, settings, engine, "wasm", evaluate=False)
    (spec,) = artifact.record.signature.inputs
    with safe_open(data.file, framework="numpy") as file:
        value = file.get_tensor(f"{TIMED}/in/{spec.name}")
    assert value.dtype == "float32"
    words = {
        "MODULE": engine.options["module"],
        "WASM": engine.options.get("wasm", ""),
        "FOLDER": engine.options.get("folder", ""),
        "ENTRY": job["timed"]["entry"],
        "SIZES": json.dumps({spec.name: list(value.shape), **job["web"]["output_shapes"][TIMED]}),
        "SHAPE": json.dumps(list(value.shape)),
        "WARMUP": str(settings.warmup_runs),
        "RUNS": str(settings.min_runs),
        "BLOCK": str(min(_BLOCK, settings.min_runs)),
    }
    text = "const get = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());\n"
    text += _LOAD[artifact.target] + _BARE + last
    for word, value_of in words.items():
        text = text.replace(word, value_of)
    return text, value.tobytes()


def bare(
    browser: Chromium, artifact: artifacts.Artifact, data: Data, settings: Settings, last: str = _ALONE
) -> dict[str, float]:
    """p50 in ms by a bare page: ``theirs``, and ``ours`` where the harness's loop takes turns with it."""
    text, value = _script(artifact, data, settings, last)
    files: dict[str, Path | bytes] = {
        **runtime(artifact.target, "wasm", 1).files,
        "index.html": page.html("bare.js", imports=artifact.target == "litert"),
        **{name: WEB / name for name in ("style.css", "tflite.js", "measure.js")},
        "bare.js": text.encode(),
        "model": artifact.file,
        "input": value,
    }
    with tempfile.TemporaryDirectory() as folder:
        ticket = Ticket(files=files, uploads={"result": 1 << 26}, folder=Path(folder))
        browser.server.offer(ticket, queue=False)
        try:
            browser.show(ticket, Limits(silence=_TIMEOUT))
        finally:
            browser.server.withdraw(ticket)
        samples = json.loads((Path(folder) / "result").read_text())
    return {name: summarise([round(ms * 1e6) for ms in found]).p50_ms for name, found in samples.items()}


def compare(
    browser: Chromium, artifact: artifacts.Artifact, out: Path, *, rounds: int, runs: int, batch: int | None
) -> Comparison:
    """Take turns, ``rounds`` times; then in one page."""
    data = make_data(out, artifact.record, artifact.program_folder, batch)
    settings = Settings(
        warmup_runs=2 * runs, warmup_seconds=0, min_runs=runs, min_seconds=0, max_seconds=_TIMEOUT, batch=batch
    )
    harness = WebHarness(browser)
    ours, theirs = [], []
    for number in range(rounds):
        say(f"{artifact.label}: round {number + 1} of {rounds}")
        for turn in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            if turn == "theirs":
                theirs.append(bare(browser, artifact, data, settings)["theirs"])
                continue
            task = Task(artifact=artifact, data=data, settings=settings, variant="wasm", timeout=_TIMEOUT)
            run = harness.measure(task)
            ours.append(summarise(run.result["samples_ns"]).p50_ms)
    say(f"{artifact.label}: in one page")
    loops = bare(browser, artifact, data, settings, _IN_TURNS)
    return Comparison(
        model=artifact.model,
        target=artifact.target,
        precision=artifact.precision,
        batch=batch,
        ours_ms=tuple(ours),
        theirs_ms=tuple(theirs),
        ratio=round(statistics.median(ours) / statistics.median(theirs), 4),
        quiet_ratio=round(min(ours) / min(theirs), 4),
        loops_ms=(loops["ours"], loops["theirs"]),
        loops_ratio=round(loops["ours"] / loops["theirs"], 4),
    )


def _text(row: Comparison) -> str:
    def judged(ratio: float) -> str:
        return f"{ratio:.3f}, {'within' if AIM[0] <= ratio <= AIM[1] else 'outside'} {AIM[0]}..{AIM[1]}"

    what = f"{row.model} {row.target} {row.precision}" + (f" batch {row.batch}" if row.batch else "")
    pages = f"{statistics.median(row.ours_ms):.3f} / {statistics.median(row.theirs_ms):.3f}"
    return (
        f"{what}: harness / bare page {pages} ms: "
        f"ratio {judged(row.ratio)}; of the quietest rounds {row.quiet_ratio:.3f}; in turns in one page "
        f"{row.loops_ms[0]:.3f} / {row.loops_ms[1]:.3f} ms: ratio {judged(row.loops_ratio)}"
    )


def main(argv: Sequence[str]) -> int:
    """Compare and print; 0 unless it cannot be done."""
    p = argparse.ArgumentParser(prog="nox -s bench-web-harness --", description=__doc__)
    p.add_argument("--out", default="out", help="where the build put its artifacts")
    p.add_argument("--model", action="append", help="as it is called there (digits_cnn)")
    p.add_argument("--targets", default="ort_web,litert")
    p.add_argument("--precision", default="fp32")
    p.add_argument("--batch", type=int, default=16, help="of the timed call: large enough for the browser's clock")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--runs", type=int, default=400, help="timed runs of each page in a round")
    p.add_argument("--json", help="write the figures there too")
    options = p.parse_args(argv)
    out = Path(options.out).resolve()
    rows = []
    try:
        found = artifacts.find(
            out,
            models=options.model or ["digits_cnn"],
            targets=options.targets.split(","),
            precisions=[options.precision],
            build_session="build",
        )
        with Server(page.lobby(), {"Content-Security-Policy": page.header_policy()}) as server:
            browser = Chromium(server, out / "bench" / "local")
            for a in found:
                rows.append(compare(browser, a, out, rounds=options.rounds, runs=options.runs, batch=options.batch))
            browser.close()
    except EdgeportError as error:
        fail(error)
        return error.exit_code
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print("\n".join(_text(row) for row in rows))
    if options.json:
        write_atomic(Path(options.json), json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
