// Goes from one measurement to the next in a person's own browser: each gets a fresh page.

import { environment } from './environment.js';
import { keepAwake } from './front.js';
import * as view from './view.js';

const NAME = 'edgeport-tab';
/** This document of it. */
const PAGE = random();

function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');
}

/** What this tab is called, in all of its documents: the lab measures in one tab only. */
function tab() {
  let name = sessionStorage.getItem(NAME);
  if (name === null) {
    name = random();
    sessionStorage.setItem(NAME, name);
  }
  return name;
}

/** Ask the lab for what comes next until it says that nothing does. @param home URL of this run */
export async function follow(home) {
  const name = tab();
  let going = false;
  // Closed while it waits: another tab may come at once.
  addEventListener('pagehide', () => { if (!going) navigator.sendBeacon(new URL('bye', home), PAGE); });
  for (;;) {
    let answer;
    try {
      const response = await fetch(new URL(`next?tab=${name}&page=${PAGE}`, home), { cache: 'no-store' });
      if (response.status === 409) {
        view.failed(await response.text());
        return;
      }
      if (!response.ok) throw new Error(String(response.status));
      answer = await response.json();
    } catch {
      view.notice('The lab has ended. Pictures still work on this page.');
      return;
    }
    if (answer.job) {
      going = true;
      location.replace(new URL(answer.job, home));
      return;
    }
    if (answer.done) {
      view.notice('All measurements are taken. Pictures still work on this page.');
      return;
    }
  }
}

/** Introduce this browser, then wait for the first job. */
export async function arrive() {
  const home = new URL('./', document.baseURI);
  view.begin('Edgeport', 'This page measures models in this browser. Leave it in front until it says that it is done.', []);
  view.pictures(null, null);
  keepAwake();
  const hello = JSON.stringify({ ...environment(), tab: tab(), page: PAGE });
  const response = await fetch(new URL('hello', home), { method: 'POST', body: hello });
  if (!response.ok) throw new Error(await response.text());
  await follow(home);
}
