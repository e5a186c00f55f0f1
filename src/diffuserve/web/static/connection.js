// Whether the server responds. It is asked every few seconds while the page is seen, at once when something has
// failed, and then until it responds again.
import { signal } from "./vendor/ui.js";
import { loadSession } from "./session.js";
import { urlOf } from "./router.js";

const LOOK_MS = 3000;
const LOOK_AGAIN_MS = 1000;
const PATIENCE_MS = 5000; // with a server that takes the request and stays silent

export const isAway = signal(false);
// How often the server has come back: an effect or `key` that reads it loads anew.
export const numReturns = signal(0);

let looking = null;

export function startLooking() {
  setInterval(() => document.visibilityState === "visible" && lookForServer(), LOOK_MS);
}

// Look whether the server responds, and go on until it does.
export function lookForServer() {
  looking ??= look().finally(() => {
    looking = null;
  });
  return looking;
}

async function look() {
  while (!(await responds())) {
    isAway.value = true;
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
  }
  if (!isAway.value) return;
  isAway.value = false;
  numReturns.value += 1;
  await loadSession();
}

// A proxy may respond for a server that is away.
const responds = () =>
  fetch(urlOf("healthz"), { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) }).then(
    (response) => response.ok,
    () => false,
  );
