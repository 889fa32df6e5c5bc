// Whether the page is in front. Browsers slow a hidden page down: what it measures says nothing about the model.

const HIDDEN = "the page was hidden during the measurement: bring it to the front (and keep the phone's screen on)";

/** Watch from now on. @returns {hidden(): whether it was hidden at any time, check(): throws where it was} */
export function watchFront() {
  let seen = false;
  const look = () => { seen ||= document.visibilityState === 'hidden'; };
  document.addEventListener('visibilitychange', look);
  look();
  return {
    hidden: () => seen,
    check() {
      if (seen) throw new Error(HIDDEN);
    },
  };
}

/** Wait until a person can see the page. */
export async function inFront() {
  while (document.visibilityState === 'hidden') {
    await new Promise((resolve) => { document.addEventListener('visibilitychange', resolve, { once: true }); });
  }
}

/** Keep a phone's screen on while this page is in front, where the browser can. */
export function keepAwake() {
  const ask = () => {
    if (document.visibilityState === 'visible') navigator.wakeLock?.request('screen').catch(() => {});
  };
  // Whoever hides the page takes the lock away.
  document.addEventListener('visibilitychange', ask);
  ask();
}
