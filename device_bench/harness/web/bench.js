// The harness: fetches a job from the lab, carries it out, sends back what it measured. Schema of what it sends:
// device_bench/harness_result.schema.json.

import { StageError, inputsOf, stage } from './checks.js';
import { environment, gpu, load, memory, sha256 } from './environment.js';
import { follow } from './follow.js';
import { keepAwake, watchFront } from './front.js';
import { numbers } from './half.js';
import { breathe, measure, timer } from './measure.js';
import { read, write } from './safetensors.js';
import * as view from './view.js';

const END = 'edgeport-end-of-run';
const STAGES = ['fetch', 'load', 'first', 'warm-up', 'timing', 'evaluation', 'send'];
const NO_CONDITIONS = { load1: null, cpus: [], thermal: [] };
/** How often the lab hears of a long evaluation: it waits for a page that goes on. Milliseconds. */
const WORD = 5000;
let settled = false;

addEventListener('pagehide', () => { if (!settled) navigator.sendBeacon('closed', ''); });

function url(path) {
  return new URL(path, document.baseURI);
}

async function post(path, body) {
  const response = await fetch(url(path), { method: 'POST', body });
  if (!response.ok) throw new Error(`the lab refused '${path}': ${response.status} ${await response.text()}`);
}

/** Tell the lab where we are. Its answer is not waited for. */
function tell(words) {
  fetch(url('stage'), { method: 'POST', body: words }).catch(() => {});
}

/** Tell a person, and the lab. */
async function enter(name) {
  view.stage(name);
  tell(name);
  await breathe();
}

function skeleton(job, clock, found) {
  return {
    schema_version: 1,
    job: job.id,
    artifact_sha256: job.artifact_sha256,
    harness: `web ${job.web.version}`,
    status: 'failed',
    error: null,
    settings: job.settings,
    timed_call: job.timed.id,
    clock: 'performance.now',
    timer_cost_ns: clock.cost,
    timer_step_ns: clock.step,
    cpu: {
      arch: 'wasm', kernel: null, online: found.cores ?? 0, affinity: [], models: [], parts: [], features: [],
    },
    runtime: { name: job.web.runtime.name, version: job.web.runtime.version },
    before: NO_CONDITIONS,
    details: found,
    end: END,
  };
}

/** Carry out a job. @returns {result, outputs, engine}; a failure is a result too */
async function carryOut(job) {
  const clock = timer();
  const found = environment();
  const result = skeleton(job, clock, found);
  const front = watchFront();
  try {
    const done = await work(job, result, front);
    return { result, ...done };
  } catch (error) {
    result.status = 'failed';
    result.details.hidden ??= front.hidden();
    result.error = { stage: error.stage ?? 'run', message: String(error.message || error).slice(0, 2000) };
    return { result, outputs: null, engine: null };
  }
}

async function work(job, result, front) {
  await enter('fetch');
  const tensors = read(await stage('tensors', () => load(job.tensors)));
  const bytes = await fetched(job, job.web.file, job.artifact);
  const external = [];
  for (const [path, file] of job.web.external) external.push([path, await fetched(job, path, file)]);
  const inputs = inputsOf(job.inputs, job.timed.tensors, tensors);
  if (job.web.provider === 'webgpu') {
    const { adapter, software } = await gpu();
    result.details.adapter = adapter;
    result.details.software_gpu = software;
    if (adapter === null) throw new StageError('load', 'this browser offers no GPU: WebGPU has no adapter here');
  }

  await stage('load', front.check);
  await enter('load');
  const start = performance.now();
  const engine = await stage('load', async () => {
    const { engine: make } = await import(`./${job.web.engine}.js`);
    const options = { ...job.web.runtime.options, provider: job.web.provider, threads: job.settings.threads };
    const made = await make({ ...options, external, shapes: job.web.output_shapes });
    await made.create(bytes, job.timed, inputs);
    return made;
  });
  result.load_ns = Math.round((performance.now() - start) * 1e6);
  const used = engine.facts();
  Object.assign(result.details, { provider: used.provider, threads_used: used.threads, ...used.details });
  if (used.version !== null && used.version !== job.web.runtime.version) {
    throw new StageError('load', `the runtime is version ${used.version}, not ${job.web.runtime.version}`);
  }
  if (job.web.provider === 'wasm' && used.threads !== null && used.threads !== job.settings.threads) {
    const why = self.crossOriginIsolated ? '' : ': the page is not cross-origin isolated';
    throw new StageError('load', `${job.settings.threads} threads were asked for, the runtime uses ${used.threads}${why}`);
  }

  const call = await stage('prepare', () => engine.prepare(job.timed, inputs));
  const batch = job.web.timed_batch;
  await enter('first');
  let phase = 'first';
  Object.assign(result, await stage('run', () => measure(call.run, call.release, job.settings, async (name, runs, share, samples) => {
    front.check();
    if (name !== phase) await enter(name);
    phase = name;
    view.stage(name, share);
    if (samples !== null) view.runs(samples);
    await breathe();
  })));
  // An evaluation in the background is only slow: no times are taken there.
  result.details.hidden = front.hidden();
  await stage('run', front.check);
  view.figures(result, batch);
  result.details = { ...result.details, ...engine.facts().details };

  await enter('evaluation');
  const outputs = await evaluate(job, engine, tensors);
  const held = await memory();
  result.details.page_memory_mb = held === null ? null : Math.round(held / 2 ** 20 * 1000) / 1000;
  // A browser shows no resident size, and no peak.
  result.memory = { rss_before_load: null, rss_after_load: null, peak_rss: null, peak_rss_end: null, samples_bytes: null };
  result.threads = { alive: null, busy: null, runtime: job.web.provider === 'wasm' ? used.threads : null };
  result.after = NO_CONDITIONS;
  result.status = 'ok';
  return { outputs, engine };
}

/** A file of the artifact, when it is the one that the job means. */
async function fetched(job, path, file) {
  const bytes = new Uint8Array(await stage('load', () => load(file)));
  if (await sha256(bytes) !== job.web.sha256[path]) {
    throw new StageError('load', `'${path}' did not arrive as it was built`);
  }
  return bytes;
}

async function evaluate(job, engine, tensors) {
  const written = {};
  let drawn = performance.now();
  let told = drawn;
  for (const [index, call] of job.calls.entries()) {
    const inputs = inputsOf(job.inputs, call.tensors, tensors);
    const ready = await stage('prepare', () => engine.prepare(call, inputs));
    const outputs = await stage('run', async () => {
      const answer = await ready.run();
      const found = await ready.outputs(answer);
      ready.release(answer);
      return found;
    });
    for (const name of job.outputs) {
      if (outputs[name] === undefined) throw new StageError('outputs', `the model returned no '${name}'`);
      written[`${call.id}/out/${name}`] = outputs[name];
    }
    if (performance.now() - drawn > 100) {
      view.stage('evaluation', index / job.calls.length);
      await breathe();
      drawn = performance.now();
    }
    if (performance.now() - told > WORD) {
      tell(`evaluation, ${index + 1} of ${job.calls.length}`);
      told = performance.now();
    }
  }
  return written;
}

function conditions(result) {
  const d = result.details;
  return [
    ['Runtime', `${result.runtime.name} ${result.runtime.version}`],
    ['Provider', d.provider],
    ['Threads used', result.threads?.runtime ?? d.threads_used],
    ['Threads asked for', d.threads_used === null ? result.settings.threads : null],
    ['Threads started', d.litert_pool],
    ['GPU', d.adapter && `${d.adapter}${d.software_gpu ? ' (software: its times mean nothing)' : ''}`],
    ['Sizes fixed', d.fixed_shapes],
    ['Hidden meanwhile', d.hidden ? 'yes' : null],
    ['Cross-origin isolated', d.cross_origin_isolated ? 'yes' : 'no'],
    ['Step of the clock', `${result.timer_step_ns / 1000} µs`],
    ['Memory of the page', d.page_memory_mb && `${d.page_memory_mb} MiB`],
    ['Browser', d.browser ?? d.user_agent],
    ['System', d.system && `${d.system}, ${d.cores} cores`],
    ['User agent', d.user_agent],
  ];
}

async function send(job, result, outputs) {
  await enter('send');
  // The server counts the files that the job asks for; where nothing ran, there is only the result.
  if (outputs !== null && job.calls.length > 0) {
    const file = new Blob(write(outputs));
    result.outputs = { file: job.outputs_file, bytes: file.size, calls: job.calls.length };
    await post('outputs', file);
  }
  await post('result', JSON.stringify(result));
  settled = true;
}

/** The scores of the deciding output for one picture. */
function predictor(job, engine) {
  return async (inputs) => {
    const spec = job.web.picture;
    const call = { id: 'picture', entry: spec.entry };
    const ready = await engine.prepare(call, inputs);
    const answer = await ready.run();
    const outputs = await ready.outputs(answer);
    const scores = numbers(outputs[spec.output]).slice();
    ready.release(answer);
    return scores;
  };
}

async function main() {
  const job = JSON.parse(new TextDecoder().decode(await load('job.json')));
  view.begin(job.web.model, job.web.words, STAGES);
  keepAwake();
  view.pictures(job.web.picture, null, job.web.no_picture);
  const { result, outputs, engine } = await carryOut(job);
  view.facts(conditions(result));
  if (result.status !== 'ok') view.failed(`${result.error.stage}: ${result.error.message}`);
  await send(job, result, outputs);
  if (result.status === 'ok') {
    view.finished();
    if (job.web.picture) view.pictures(job.web.picture, predictor(job, engine));
  }
  // Everything of this page is loaded by now: its own address opens nothing any more.
  if (job.web.follow) await follow(url('../'));
}

main().catch((error) => {
  view.failed(String(error.message || error));
  if (!settled) navigator.sendBeacon('closed', String(error.message || error).slice(0, 500));
  settled = true;
});
