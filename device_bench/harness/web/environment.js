// What the page can know of where it runs. null: the browser does not say.

import { digest } from './sha256.js';

/** @returns scalars for the measurement's details */
export function environment() {
  const brands = navigator.userAgentData?.brands?.filter((b) => !/not.?a.?brand/i.test(b.brand)) ?? [];
  return {
    user_agent: navigator.userAgent,
    browser: brands.map((b) => `${b.brand} ${b.version}`).join(', ') || null,
    system: navigator.userAgentData?.platform || navigator.platform || null,
    cores: navigator.hardwareConcurrency ?? null,
    cross_origin_isolated: self.crossOriginIsolated === true,
  };
}

/** The GPU that WebGPU would use. @returns {adapter, software}; adapter null: there is none */
export async function gpu() {
  const adapter = await navigator.gpu?.requestAdapter({ powerPreference: 'high-performance' }).catch(() => null);
  if (!adapter) return { adapter: null, software: false };
  const { vendor, architecture, description } = adapter.info;
  const name = [vendor, architecture, description].filter(Boolean).join(' ') || 'unnamed';
  const software = adapter.info.isFallbackAdapter === true || /swiftshader|llvmpipe|software/i.test(name);
  return { adapter: name, software };
}

/** Bytes that the page holds, workers and WebAssembly included; null where the browser won't say in time. */
export async function memory(limit = 3000) {
  if (typeof performance.measureUserAgentSpecificMemory !== 'function' || !self.crossOriginIsolated) return null;
  const late = new Promise((resolve) => { setTimeout(() => resolve(null), limit); });
  const measured = performance.measureUserAgentSpecificMemory().then((found) => found.bytes, () => null);
  return Promise.race([measured, late]);
}

export async function sha256(bytes) {
  // Only secure contexts have the browser's own: https, and the very machine that the page runs on.
  const own = self.crypto?.subtle;
  const found = own === undefined ? digest(bytes) : new Uint8Array(await own.digest('SHA-256', bytes));
  return Array.from(found, (b) => b.toString(16).padStart(2, '0')).join('');
}

/** Fetch a file of this page's own folder. */
export async function load(path) {
  const response = await fetch(new URL(path, document.baseURI));
  if (!response.ok) throw new Error(`cannot fetch ${path}: ${response.status}`);
  return response.arrayBuffer();
}
