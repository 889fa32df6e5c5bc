// What a person sees. Holds no state of the measurement: it is told.

import { percentile } from './measure.js';
import { best, decode, prepare } from './picture.js';
import { draw } from './plot.js';

const $ = (id) => document.getElementById(id);
let stages = [];
let drawn = null;

/** @param words what is measured, in words; @param names of the stages to come */
export function begin(model, words, names) {
  $('model').textContent = model;
  $('subtitle').textContent = words;
  document.title = `${model} · Edgeport`;
  stages = names;
  $('stages').replaceChildren(...names.map((name) => {
    const item = document.createElement('li');
    item.textContent = name;
    return item;
  }));
  state('running', 'running');
}

export function state(name, text) {
  document.body.dataset.state = name;
  $('state').textContent = text;
}

/** Show that a stage goes on. @param share done of it, 0..1 */
export function stage(name, share = 0) {
  const index = stages.indexOf(name);
  [...$('stages').children].forEach((item, i) => {
    item.dataset.state = i < index ? 'done' : i === index ? 'now' : 'waiting';
  });
  $('progress').value = (index + share) / stages.length;
}

export function finished(text = 'done') {
  [...$('stages').children].forEach((item) => { item.dataset.state = 'done'; });
  $('progress').value = 1;
  state('done', text);
}

export function failed(message) {
  const now = document.querySelector('#stages [data-state="now"]');
  if (now) now.dataset.state = 'failed';
  $('problem').textContent = message;
  $('problem').hidden = false;
  state('failed', 'failed');
}

export function notice(text) {
  $('notice').textContent = text;
  $('notice').hidden = false;
}

/** Draw the runs so far. @param samples milliseconds */
export function runs(samples) {
  if (samples.length === 0) return;
  if (drawn === null) new ResizeObserver(() => draw($('plot'), drawn)).observe($('plot'));
  drawn = samples;
  draw($('plot'), samples);
  const sorted = Float64Array.from(samples).sort();
  const texts = [50, 95].map((p) => `p${p} ${milliseconds(percentile(sorted, p))} ms`);
  $('plot-text').textContent = `${samples.length} runs: ${texts.join(', ')}, slowest ${milliseconds(sorted.at(-1))} ms.`;
}

export function milliseconds(ms) {
  return ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms >= 1 ? ms.toFixed(2) : ms.toFixed(3);
}

/** @param result of measure(), with load_ns; @param batch examples in the timed call */
export function figures(result, batch) {
  const ms = Float64Array.from(result.samples_ns, (ns) => ns / 1e6);
  const sorted = ms.slice().sort();
  const rows = [
    ['p50', milliseconds(percentile(sorted, 50)), 'ms', 'main'],
    ['p95', milliseconds(percentile(sorted, 95)), 'ms', 'main'],
    ['per second', ((ms.length * batch * 1e9) / Math.max(result.loop_ns, 1)).toFixed(1), ''],
    ['runs', String(ms.length), ''],
    ['load', milliseconds(result.load_ns / 1e6), 'ms'],
    ['first inference', milliseconds(result.first_ns / 1e6), 'ms'],
  ];
  $('figures').replaceChildren(...rows.map(([name, value, unit, kind]) => {
    const box = document.createElement('div');
    if (kind) box.className = kind;
    const term = document.createElement('dt');
    term.textContent = name;
    const figure = document.createElement('dd');
    figure.textContent = value;
    if (unit) {
      const small = document.createElement('small');
      small.textContent = ` ${unit}`;
      figure.append(small);
    }
    box.append(term, figure);
    return box;
  }));
  runs(ms);
}

/** @param rows [[name, words or an element], …]; a value that is null is left out */
export function facts(rows) {
  $('facts').replaceChildren(...rows.filter(([, value]) => value !== null && value !== undefined).flatMap(([name, value]) => {
    const term = document.createElement('dt');
    term.textContent = name;
    const text = document.createElement('dd');
    text.append(value instanceof Node ? value : String(value));
    return [term, text];
  }));
}

// A browser opens what is dropped where nobody takes it, and leaves the page with all that it has measured.
for (const name of ['dragover', 'drop']) addEventListener(name, (event) => event.preventDefault());

/**
 * Let a person drop pictures.
 *
 * @param spec how a picture becomes an input; null: this model takes none
 * @param predict ({name: {dtype, dims, data}}) -> scores of the deciding output; null: not yet
 * @param why there is no spec, in words
 */
export function pictures(spec, predict, why = null) {
  const input = $('picture');
  const drop = $('drop');
  drop.classList.toggle('off', spec === null || predict === null);
  input.disabled = spec === null || predict === null;
  if (spec === null) {
    $('picture-none').textContent = why ?? 'This model takes no pictures.';
    $('picture-none').hidden = false;
    $('picture-area').hidden = true;
    return;
  }
  if (predict === null) return;
  const show = (file) => answer(file, spec, predict);
  input.addEventListener('change', () => input.files[0] && show(input.files[0]));
  for (const name of ['dragenter', 'dragover', 'dragleave', 'drop']) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle('over', name === 'dragenter' || name === 'dragover');
      if (name === 'drop' && event.dataTransfer.files[0]) show(event.dataTransfer.files[0]);
    });
  }
}

let latest = 0;
let before = Promise.resolve();

/** One picture after the other, as engines take one call at a time; only the last one's answer is shown. */
function answer(file, spec, predict) {
  const mine = ++latest;
  const current = () => mine === latest;
  $('predicted').textContent = 'Looking…';
  $('scores').replaceChildren();
  before = before.then(() => (current() ? look(file, spec, predict, current) : null));
}

async function look(file, spec, predict, current) {
  try {
    const made = prepare(await decode(file, spec.color), spec);
    if (!current()) return;
    const scores = await predict({ [spec.input]: { dtype: 'F32', dims: made.dims, data: made.data } });
    if (!current()) return;
    paint(made.seen, spec);
    const rows = best(scores, spec.labels);
    $('predicted').textContent = rows[0].label;
    $('scores').replaceChildren(...rows.map((row) => {
      const item = document.createElement('li');
      const name = document.createElement('span');
      name.textContent = row.label;
      const score = document.createElement('span');
      score.textContent = row.score.toFixed(3);
      const meter = document.createElement('meter');
      meter.value = row.share;
      item.append(name, score, meter);
      return item;
    }));
  } catch (error) {
    if (!current()) return;
    $('predicted').textContent = `This picture can't be used: ${error.message || error}`;
  }
}

function paint(seen, spec) {
  const canvas = $('seen');
  canvas.width = spec.width;
  canvas.height = spec.height;
  canvas.hidden = false;
  const channels = seen.length / (spec.width * spec.height);
  const image = new ImageData(spec.width, spec.height);
  const order = spec.color === 'BGR' ? [2, 1, 0] : [0, 1, 2];
  for (let i = 0; i < spec.width * spec.height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = seen[channels === 1 ? i : 3 * i + order[c]];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext('2d').putImageData(image, 0, 0);
}
