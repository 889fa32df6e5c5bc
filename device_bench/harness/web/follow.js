// Goes from one measurement to the next in a person's own browser: each gets a fresh page.

import { environment } from './environment.js';
import * as view from './view.js';

/** Ask the lab for what comes next until it says that nothing does. @param home URL of this run */
export async function follow(home) {
  for (;;) {
    let answer;
    try {
      const response = await fetch(new URL('next', home), { cache: 'no-store' });
      if (!response.ok) throw new Error(String(response.status));
      answer = await response.json();
    } catch {
      view.notice('The lab has ended. Pictures still work on this page.');
      return;
    }
    if (answer.job) {
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
  await fetch(new URL('hello', home), { method: 'POST', body: JSON.stringify(environment()) });
  await follow(home);
}
