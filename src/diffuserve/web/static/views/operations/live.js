// The operators' snapshot as signals, kept up to date by the server's deltas while the view is shown.
// Each component reads the part that it shows: what did not change keeps its identity, and renders nothing.
import { batch, computed, signal } from "../../vendor/ui.js";
import { follow } from "../../api.js";
import { apply } from "../../deltas.js";

const OLD_SECONDS = 8; // the server sends every 2 s

export const snapshot = signal(null);
export const connection = signal("connecting");
const receivedAt = signal(0);
export const ticks = signal(performance.now()); // the browser's clock, once a second

export const part = (name) => computed(() => snapshot.value?.[name]);
export const workers = computed(() => snapshot.value?.workers ?? []);
export const workersById = computed(() => new Map(workers.value.map((worker) => [worker.id, worker])));

// Seconds since the server's last word.
export const age = computed(() => Math.max(0, (ticks.value - receivedAt.value) / 1000));
export const isOld = computed(() => snapshot.value !== null && age.value > OLD_SECONDS);
// The server's clock, in seconds since the epoch: the browser's may be wrong.
export const serverNow = computed(() => Date.parse(snapshot.value?.at ?? 0) / 1000 + age.value);

// Follow the server until the returned function is called. A new stream begins with a whole snapshot.
export function startLive({ onSnapshot, onChange }) {
  const timer = setInterval(() => (ticks.value = performance.now()), 1000);
  const receive = (next) => {
    show(next);
    onChange(next);
  };
  const handlers = {
    snapshot: (next) => {
      receive(next);
      onSnapshot();
    },
    delta: (delta) => receive(apply(delta, snapshot.peek())),
  };
  const stop = follow("v1/operations/events", handlers, { onState: (state) => (connection.value = state) });
  return () => {
    clearInterval(timer);
    stop();
  };
}

function show(next) {
  batch(() => {
    snapshot.value = next;
    receivedAt.value = ticks.value = performance.now();
    connection.value = "open";
  });
}
