// Which workers the table shows, and in which order: pure functions of the snapshot's workers.
import { plural } from "./numbers.js";
import { STATES, stateOf } from "./worker_state.js";

const URGENCY = ["lost", "stalled", "draining", "initializing", "occupied", "ready"];
const nameOf = (worker) => worker.name || worker.id;

// What a column sorts by. States are sorted by urgency, so that what needs a look is at the top.
export const SORTS = {
  name: nameOf,
  state: (worker) => URGENCY.indexOf(stateOf(worker)),
  model: (worker) => worker.models.join(" "),
  device: (worker) => deviceOf(worker),
  memory: (worker) => memoryShare(worker) ?? -1,
  jobs: (worker) => worker.num_leases,
  heartbeat: (worker) => worker.heartbeat_at,
  price: (worker) => worker.price_per_hour ?? -1,
};

export function deviceOf({ report }) {
  if (report.device_name) return report.num_gpus > 1 ? `${report.num_gpus} × ${report.device_name}` : report.device_name;
  if (report.num_gpus) return plural(report.num_gpus, "GPU");
  return report.num_cpus ? plural(report.num_cpus, "CPU core") : "–";
}

export function memoryShare({ report }) {
  return report.memory_limit_bytes ? report.memory_bytes / report.memory_limit_bytes : null;
}

// Return the ids of the workers to show. `filter` is { state, model, words }, `order` { by, isDown }.
export function shownIds(workers, filter, order) {
  const rows = workers.filter((worker) => isShown(worker, filter)).map((worker) => [SORTS[order.by](worker), worker]);
  const sign = order.isDown ? -1 : 1;
  rows.sort(([a, first], [b, second]) => sign * compare(a, b) || compare(nameOf(first), nameOf(second)) ||
    compare(first.id, second.id));
  return rows.map(([, worker]) => worker.id);
}

const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (typeof a === "number" ? a - b : collator.compare(a, b));

function isShown(worker, { state, model, words }) {
  if (state && stateOf(worker) !== state) return false;
  if (model && !worker.models.includes(model)) return false;
  return !words || `${worker.name} ${worker.id}`.toLowerCase().includes(words.toLowerCase());
}

// Return [state, number] of the states that workers have, in the order of STATES.
export function stateCounts(workers) {
  const states = workers.map(stateOf);
  return STATES.map((state) => [state, states.filter((other) => other === state).length]).filter(([, n]) => n);
}

export const modelsOf = (workers) => [...new Set(workers.flatMap((worker) => worker.models))].sort();
