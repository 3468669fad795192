// Keeps the page in touch with the service: its events, its list of requests, its health. What breaks is begun again.

import { eventsOf } from "./sse.js";

const LEAST_PAUSE_S = 1;
const MOST_PAUSE_S = 30;
// The service gives a sign of life every 15 s; a connection that is silent for longer is dead.
const SILENT_S = 40;

/** Seconds before the next try, after `numFailures` in a row. */
export function pauseAfter(numFailures, random = Math.random()) {
  return Math.min(MOST_PAUSE_S, LEAST_PAUSE_S * 2 ** Math.min(numFailures, 10)) * (0.5 + random / 2);
}

const pause = (forS) => new Promise((resolve) => setTimeout(resolve, forS * 1000));

/** A pause that ends early when the machine is in a network again. */
async function pauseOrOnline(forS) {
  const over = new AbortController();
  const online = new Promise((resolve) => addEventListener("online", resolve, { signal: over.signal }));
  await Promise.race([pause(forS), online]);
  over.abort();
}

/** Hear events for ever. `onState` is told "live", or "lost" with the seconds before the next try. */
export async function follow({ api, onEvent, onState }) {
  for (let numFailures = 0; ; numFailures++) {
    try {
      await hear({ api, onEvent, onLive: () => { numFailures = 0; onState("live"); } });
    } catch {
      // It is told as lost, as an answer that has ended is.
    }
    const pauseS = pauseAfter(numFailures);
    onState("lost", pauseS);
    await pauseOrOnline(pauseS);
  }
}

async function hear({ api, onEvent, onLive }) {
  const abort = new AbortController();
  let timer = null;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => abort.abort(), SILENT_S * 1000);
  };
  try {
    const response = await api.call("v1/events", { signal: abort.signal });
    onLive();
    alive();
    for await (const event of eventsOf(response, alive)) onEvent(event);
  } finally {
    clearTimeout(timer);
  }
}

/** Call `ask` again and again while somebody looks, `everyS` seconds after the last answer; what fails is tried again. */
export async function poll({ ask, everyS }) {
  for (;;) {
    if (!document.hidden) await ask().catch(() => {});
    await pause(everyS);
  }
}
