// The timed loop. Nothing is drawn, logged or allocated between the two readings of the clock but by the runtime.

/** How long warm-up and loop may hold the page before they let it draw, in milliseconds: drawing takes CPU time too. */
const HOLD = 100;
const LOOP_HOLD = 500;
/** How long a frame is waited for: a page in the background gets none. */
const FRAME = 60;

/** @returns {step, cost}: the smallest step of performance.now(), and what reading it costs, in nanoseconds */
export function timer() {
  const steps = [];
  const end = performance.now() + 25;
  let last = performance.now();
  let reads = 0;
  const start = last;
  while (last < end) {
    const now = performance.now();
    reads++;
    if (now > last && steps.length < 10000) steps.push(now - last);
    last = now;
  }
  steps.sort((a, b) => a - b);
  return { step: Math.round((steps[0] ?? 0) * 1e6), cost: Math.round(((last - start) / reads) * 1e6) };
}

/** Let the page handle events and draw, and wait until it has: its drawing must not go on beside what is timed. */
export function breathe() {
  return new Promise((resolve) => {
    const late = setTimeout(resolve, FRAME);
    requestAnimationFrame(() => {
      clearTimeout(late);
      setTimeout(resolve, 0);
    });
  });
}

/**
 * First inference, warm-up, timed loop.
 *
 * @param run one inference: resolves when its outputs can be read
 * @param release frees a result, outside of the times
 * @param settings as in the job
 * @param watch called between runs now and then with (phase, runs, share done, samples so far)
 * @returns {first_ns, warmup: {runs, ns}, samples_ns, loop_ns}; the loop's time leaves out where the page drew
 */
export async function measure(run, release, settings, watch) {
  let start = performance.now();
  let result = await run();
  const first = performance.now() - start;
  release(result);
  await watch('first', 1, 1, null);

  const warmup = { runs: 0, ms: 0 };
  let drawn = performance.now();
  while (warmup.runs < settings.warmup_runs || warmup.ms < settings.warmup_seconds * 1e3) {
    start = performance.now();
    result = await run();
    warmup.ms += performance.now() - start;
    release(result);
    warmup.runs++;
    if (warmup.ms > settings.max_seconds * 1e3) break;
    if (performance.now() - drawn > HOLD) {
      await watch('warm-up', warmup.runs, Math.min(1, warmup.ms / (settings.warmup_seconds * 1e3 || 1)), null);
      drawn = performance.now();
    }
  }

  let samples = new Float64Array(Math.min(settings.max_runs, 4096));
  let runs = 0;
  let paused = 0;
  await watch('timing', 0, 0, samples.subarray(0, 0));
  const began = performance.now();
  drawn = began;
  while (runs < settings.max_runs) {
    start = performance.now();
    result = await run();
    const end = performance.now();
    samples[runs++] = end - start;
    release(result);
    const elapsed = end - began - paused;
    if (elapsed >= settings.max_seconds * 1e3) break;
    if (runs >= settings.min_runs && elapsed >= settings.min_seconds * 1e3) break;
    if (runs === samples.length || end - drawn > LOOP_HOLD) {
      if (runs === samples.length) samples = grown(samples, Math.min(settings.max_runs, 2 * runs));
      const share = Math.min(runs / settings.min_runs, elapsed / (settings.min_seconds * 1e3 || 1));
      await watch('timing', runs, Math.min(1, share), samples.subarray(0, runs));
      drawn = performance.now();
      paused += drawn - end;
    }
  }
  const loop = performance.now() - began - paused;
  const ns = Array.from(samples.subarray(0, runs), (ms) => Math.round(ms * 1e6));
  return {
    first_ns: Math.round(first * 1e6),
    warmup: { runs: warmup.runs, ns: Math.round(warmup.ms * 1e6) },
    samples_ns: ns,
    loop_ns: Math.round(loop * 1e6),
  };
}

function grown(samples, length) {
  const larger = new Float64Array(length);
  larger.set(samples);
  return larger;
}

/** Nearest rank, as the host counts: a value that was really measured. */
export function percentile(sorted, percent) {
  return sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length) - 1)];
}
