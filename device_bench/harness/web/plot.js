// The latency plot: every run from left to right, and how often each latency came, at the right edge.

import { percentile } from './measure.js';

const SVG = 'http://www.w3.org/2000/svg';
const HEIGHT = 240;
const LEFT = 52;
const TOP = 14;
const BOTTOM = 212;
/** What is kept at the right for the histogram and the names of the lines. */
const EDGE = 104;
const BAR = 60;
const BINS = 40;

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A round step that gives three to six lines up to a value. */
function stepFor(top) {
  const raw = top / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw);
}

/**
 * Draw samples.
 *
 * @param svg where to
 * @param samples typed array of milliseconds
 */
export function draw(svg, samples) {
  if (samples.length === 0) return;
  // One unit is one pixel, whatever the width: letters keep their shape.
  const width = Math.max(260, Math.round(svg.clientWidth) || 720);
  const right = width - EDGE;
  svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
  const sorted = Float64Array.from(samples).sort();
  const p50 = percentile(sorted, 50);
  const p95 = percentile(sorted, 95);
  // The slowest few may leave the plot: one hiccup would make a flat line of all the rest.
  const top = Math.max(Math.min(percentile(sorted, 99) * 1.15, p50 * 4), p95 * 1.25, 1e-6);
  const y = (ms) => BOTTOM - (Math.min(ms, top) / top) * (BOTTOM - TOP);
  const parts = [];
  const step = stepFor(top);
  for (let ms = 0; ms <= top; ms += step) {
    parts.push(element('line', { class: 'grid', x1: LEFT, x2: width - 8, y1: y(ms), y2: y(ms) }));
    parts.push(element('text', { x: LEFT - 8, y: y(ms) + 4, 'text-anchor': 'end' }, label(ms, step)));
  }
  parts.push(element('text', { x: LEFT, y: HEIGHT - 8 }, 'run 1'));
  parts.push(element('text', { x: right, y: HEIGHT - 8, 'text-anchor': 'end' }, `run ${samples.length}`));
  parts.push(element('text', { x: LEFT - 8, y: HEIGHT - 8, 'text-anchor': 'end' }, 'ms'));
  parts.push(...histogram(sorted, top, y, right));
  parts.push(element('path', { class: 'band', d: band(samples, y, right) }));
  for (const [name, ms] of [['p50', p50], ['p95', p95]]) {
    parts.push(element('line', { class: name, x1: LEFT, x2: right, y1: y(ms), y2: y(ms) }));
  }
  const apart = y(p50) - y(p95) < 13 ? 13 - (y(p50) - y(p95)) : 0;
  parts.push(element('text', { class: 'p50', x: width - 8, y: y(p50) + 4 + apart / 2, 'text-anchor': 'end' }, 'p50'));
  parts.push(element('text', { class: 'p95', x: width - 8, y: y(p95) + 4 - apart / 2, 'text-anchor': 'end' }, 'p95'));
  svg.replaceChildren(...parts);
}

function label(ms, step) {
  return ms.toFixed(Math.max(0, -Math.floor(Math.log10(step))));
}

/** One stroke per column of the plot, from the fastest to the slowest run in it. */
function band(samples, y, right) {
  const columns = Math.min(Math.ceil((right - LEFT) / 2), samples.length);
  const x = (i) => LEFT + 2 + (columns === 1 ? 0 : (i / (columns - 1)) * (right - LEFT - 4));
  let path = '';
  for (let column = 0; column < columns; column++) {
    const start = Math.floor((column * samples.length) / columns);
    const end = Math.floor(((column + 1) * samples.length) / columns);
    let low = Infinity;
    let high = -Infinity;
    for (let i = start; i < end; i++) {
      low = Math.min(low, samples[i]);
      high = Math.max(high, samples[i]);
    }
    path += `${column === 0 ? 'M' : 'L'}${x(column).toFixed(1)} ${y(low).toFixed(1)}V${y(high).toFixed(1)}`;
  }
  return path;
}

function histogram(sorted, top, y, right) {
  const counts = new Array(BINS).fill(0);
  for (const ms of sorted) {
    if (ms < top) counts[Math.floor((ms / top) * BINS)]++;
  }
  const most = Math.max(...counts, 1);
  const height = (BOTTOM - TOP) / BINS;
  return counts.flatMap((count, bin) => {
    if (count === 0) return [];
    const width = (count / most) * BAR;
    const attributes = { class: 'bar', x: right + 6, y: y(((bin + 1) / BINS) * top) + 0.5, width, height: height - 1 };
    return [element('rect', attributes)];
  });
}
