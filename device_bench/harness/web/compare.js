// The rule of a bundle's self-test: |got - expected| <= atol + rtol*|expected| + scale*max|expected|; integers and
// booleans are equal.

import { numbers } from './half.js';

const REAL = new Set(['F16', 'F32', 'F64']);

/**
 * @param got, want {dtype, dims, data} @param limit {atol, rtol, scale}
 * @returns {problem: null or words, largest: difference}
 */
export function compare(got, want, limit) {
  if (got.dtype !== want.dtype) return { problem: `is ${got.dtype}, not ${want.dtype}`, largest: 0 };
  if (got.dims.join() !== want.dims.join()) {
    return { problem: `has shape [${got.dims}], not [${want.dims}]`, largest: 0 };
  }
  const [a, b] = [numbers(got), numbers(want)];
  const exact = !REAL.has(want.dtype);
  const top = exact ? 0 : b.reduce((most, x) => (Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most), 0);
  let largest = 0;
  let beyond = 0;
  for (let i = 0; i < b.length; i++) {
    if (Object.is(a[i], b[i]) || a[i] === b[i]) continue;
    const difference = Math.abs(a[i] - b[i]);
    const allowed = exact ? 0 : limit.atol + limit.rtol * Math.abs(b[i]) + limit.scale * top;
    // Written so that NaN and infinity on one side only are beyond.
    if (!(difference <= allowed) || !Number.isFinite(b[i])) beyond++;
    else largest = Math.max(largest, difference);
  }
  return { problem: beyond ? `has ${beyond} elements beyond tolerance` : null, largest };
}
