// The page of a bundle: checks the model that lies beside it against PyTorch's answers, measures it, shows it.

import { StageError, checkShape, stage } from './checks.js';
import { compare } from './compare.js';
import { environment, load, memory, sha256 } from './environment.js';
import { inFront, keepAwake, watchFront } from './front.js';
import { numbers } from './half.js';
import { breathe, measure, timer } from './measure.js';
import { engine as ort } from './ort.js';
import * as view from './view.js';

const STAGES = ['fetch', 'load', 'self-test', 'warm-up', 'timing'];
const SETTINGS = {
  warmup_runs: 5, warmup_seconds: 0.5, min_runs: 50, min_seconds: 1, max_runs: 1000000, max_seconds: 60,
};
/** numpy's names of dtypes, as the self-test has them -> safetensors' */
const DTYPES = {
  bool: 'BOOL', uint8: 'U8', int8: 'I8', int16: 'I16', int32: 'I32', int64: 'I64', float16: 'F16', float32: 'F32',
  float64: 'F64',
};
const ARRAYS = {
  BOOL: Uint8Array, U8: Uint8Array, I8: Int8Array, I16: Int16Array, I32: Int32Array, I64: BigInt64Array,
  F16: Uint16Array, F32: Float32Array, F64: Float64Array,
};

async function json(path) {
  return JSON.parse(new TextDecoder().decode(await load(path)));
}

async function fetched(file) {
  const bytes = new Uint8Array(await load(file.path));
  const whole = bytes.length === file.bytes && (await sha256(bytes)) === file.sha256;
  if (!whole) throw new StageError('fetch', `'${file.name}' is not the file that the bundle was made with`);
  return bytes;
}

/** What was asked for in the address: ?artifact=fp32&threads=2 */
function wishes(page) {
  const query = new URLSearchParams(location.search);
  const precision = query.get('artifact') ?? page.artifacts[0].precision;
  const artifact = page.artifacts.find((a) => a.precision === precision);
  if (artifact === undefined) throw new Error(`this bundle has no artifact '${precision}'`);
  const most = navigator.hardwareConcurrency || 1;
  const threads = Number(query.get('threads') ?? Math.min(4, most));
  if (!Number.isInteger(threads) || threads < 1) throw new Error(`'${query.get('threads')}' is no number of threads`);
  return { artifact, threads };
}

async function tensor(page, entry) {
  const dtype = DTYPES[entry.dtype];
  return { dtype, dims: entry.shape, data: new ARRAYS[dtype](await load(page.root + entry.file)) };
}

/** @returns {calls, largest, first}: how many were right, the largest difference; the first call and its time in ms */
async function selfTest(page, artifact, engine) {
  const test = await json(page.selftest);
  const limits = test.tolerances[artifact.label];
  let largest = 0;
  let first = null;
  for (const [index, call] of test.calls.entries()) {
    const inputs = {};
    for (const [i, entry] of call.inputs.entries()) {
      inputs[entry.name] = await tensor(page, entry);
      checkShape(page.inputs[i], entry.shape);
    }
    const ready = await engine.prepare({ id: call.id, entry: 'forward' }, inputs);
    const start = performance.now();
    const answer = await ready.run();
    first ??= { call, inputs, ms: performance.now() - start };
    const outputs = await ready.outputs(answer);
    for (const entry of call.outputs) {
      if (outputs[entry.name] === undefined) throw new Error(`call '${call.id}': there is no '${entry.name}'`);
      if (limits[entry.name] === undefined) throw new Error(`there is no tolerance for '${entry.name}'`);
      const found = compare(outputs[entry.name], await tensor(page, entry), limits[entry.name]);
      if (found.problem) throw new Error(`call '${call.id}': '${entry.name}' ${found.problem}`);
      largest = Math.max(largest, found.largest);
    }
    ready.release(answer);
    view.stage('self-test', (index + 1) / test.calls.length);
    await breathe();
  }
  return { calls: test.calls.length, largest, first };
}

/** Links to this page with another artifact; null without one. */
function links(precisions) {
  if (precisions.length === 0) return null;
  const all = document.createElement('span');
  for (const precision of precisions) {
    const link = document.createElement('a');
    link.href = `?artifact=${encodeURIComponent(precision)}`;
    link.textContent = precision;
    all.append(link, ' ');
  }
  return all;
}

async function run(page) {
  const { artifact, threads } = wishes(page);
  const isolated = self.crossOriginIsolated === true;
  const used = isolated ? threads : 1;
  const words = `${page.runtime.name} ${page.runtime.version} on wasm`;
  view.begin(page.model, `${artifact.label}, ${words}`, STAGES);
  view.pictures(page.picture, null, page.no_picture);
  if (!isolated) {
    const why = self.isSecureContext
      ? 'This host sends no isolation headers (Cross-Origin-Opener-Policy: same-origin, '
        + 'Cross-Origin-Embedder-Policy: require-corp)'
      : 'This page came over plain http, which browsers do not isolate (https would do)';
    view.notice(`${why}, so the model runs on one thread and the clock is coarse.`);
  }
  const clock = timer();
  view.stage('fetch');
  const main = artifact.files.find((f) => f.name === artifact.main);
  const bytes = await stage('fetch', () => fetched(main));
  const external = [];
  for (const file of artifact.files) {
    if (file !== main) external.push([file.name, await stage('fetch', () => fetched(file))]);
  }
  view.stage('load');
  await breathe();
  const start = performance.now();
  const engine = await stage('load', async () => {
    const made = await ort({ ...page.runtime.options, provider: 'wasm', threads: used, external });
    await made.create(bytes);
    return made;
  });
  const loaded = performance.now() - start;
  view.stage('self-test');
  const test = await stage('self-test', () => selfTest(page, artifact, engine));
  document.body.dataset.selftest = 'passed';

  const call = await engine.prepare({ id: 'timed', entry: 'forward' }, test.first.inputs);
  let samples = null;
  keepAwake();
  if (document.visibilityState === 'hidden') view.state('running', 'waiting: bring this page to the front');
  await inFront();
  view.state('running', 'running');
  const front = watchFront();
  const result = await stage('timing', () => measure(call.run, call.release, SETTINGS, async (name, runs, share, found) => {
    front.check();
    if (name !== 'first') view.stage(name, share);
    samples = found ?? samples;
    if (samples !== null) view.runs(samples);
    await breathe();
  }));
  await stage('timing', front.check);
  view.figures({ ...result, load_ns: loaded * 1e6, first_ns: test.first.ms * 1e6 }, test.first.call.sizes.batch ?? 1);
  const held = await memory();
  const where = environment();
  view.facts([
    ['Self-test', `${test.calls} calls as PyTorch answers, largest difference ${test.largest.toExponential(1)}`],
    ['Runtime', `${page.runtime.name} ${page.runtime.version}`],
    ['Provider', engine.facts().provider],
    ['Threads used', engine.facts().threads],
    ['Cross-origin isolated', isolated ? 'yes' : 'no'],
    ['Step of the clock', `${clock.step / 1000} µs`],
    ['Memory of the page', held && `${(held / 2 ** 20).toFixed(1)} MiB`],
    ['Browser', where.browser ?? where.user_agent],
    ['System', where.system && `${where.system}, ${where.cores} cores`],
    ['Other artifacts', links(page.artifacts.filter((a) => a !== artifact).map((a) => a.precision))],
  ]);
  if (page.picture) {
    view.pictures(page.picture, async (inputs) => {
      const ready = await engine.prepare({ id: 'picture', entry: 'forward' }, inputs);
      const answer = await ready.run();
      return numbers((await ready.outputs(answer))[page.picture.output]);
    });
  }
  view.finished('self-test passed');
}

json('page.json').then(run).catch((error) => {
  document.body.dataset.selftest ??= 'failed';
  view.failed(`${error.stage ? `${error.stage}: ` : ''}${error.message || error}`);
});
