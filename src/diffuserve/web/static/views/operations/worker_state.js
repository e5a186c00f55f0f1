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

// The state that matters to operators: a worker that drains still reports that it is ready, and one whose last
// job has just ended, until its next heartbeat, that it is occupied.
export function stateOf({ state, is_draining: isDraining, num_leases: numLeases }) {
  if (isDraining && state !== "lost") return "draining";
  return state === "occupied" && numLeases === 0 ? "ready" : state;
}

export function WorkerState({ worker }) {
  const state = stateOf(worker);
  const [sign, tone] = SIGNS[state] ?? ["○", "muted"];
  const reason = state === "draining" ? worker.report.drain_reason || null : null;
  return html`<span class="state ${tone}" title=${reason}><span aria-hidden="true">${sign}</span> ${state}</span>`;
}
