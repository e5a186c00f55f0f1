// The state of a worker as a sign and a word: color is never the only difference.
import { html } from "../../vendor/ui.js";

const SIGNS = {
  ready: ["●", "good"],
  occupied: ["◉", "good"],
  initializing: ["◌", "muted"],
  draining: ["▼", "warning"],
  stalled: ["▲", "bad"],
  lost: ["✕", "bad"],
};

export const STATES = Object.keys(SIGNS);

// The state that matters to operators: a worker that drains still reports that it is ready.
export const stateOf = (worker) =>
  worker.is_draining && worker.state !== "lost" ? "draining" : worker.state;

export function WorkerState({ worker }) {
  const state = stateOf(worker);
  const [sign, tone] = SIGNS[state] ?? ["○", "muted"];
  const reason = state === "draining" ? worker.report.drain_reason || null : null;
  return html`<span class="state ${tone}" title=${reason}><span aria-hidden="true">${sign}</span> ${state}</span>`;
}
