// Points of the last hour for the charts: read once from the server, then one every ten seconds from what is live.
import { computed, signal } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { serverNow, snapshot } from "./live.js";

const SPACING_SECONDS = 10;
const HOUR = 3600;

// Points { time, … }, oldest first; `time` is in seconds, the other fields are those of HistoryPointResource.
export const points = signal([]);

// For how long no worker has been ready, in seconds; null while one is, or where it is not known.
export const notReadySeconds = computed(() => {
  if (snapshot.value?.ready.is_ready) return null;
  const last = points.value.findLast((point) => point.num_workers > 0);
  return last ? Math.max(0, serverNow.value - last.time) : null;
});

export async function loadHistory() {
  const { data } = await request("GET", "v1/operations/history");
  const stored = data.map((point) => ({ ...point, time: Date.parse(point.at) / 1000 }));
  const last = stored.at(-1)?.time ?? 0;
  points.value = [...stored, ...points.peek().filter((point) => point.time >= last + SPACING_SECONDS)];
}

// Add the point of a snapshot, unless the last one is younger than the spacing.
export function addPoint(current) {
  const time = Date.parse(current.at) / 1000;
  const last = points.peek().at(-1)?.time ?? 0;
  if (time - last < SPACING_SECONDS) return;
  const recent = points.peek().filter((point) => point.time > time - HOUR);
  points.value = [...recent, { time, ...pointOf(current) }];
}

const pointOf = ({ throughput, latency, queue, num_workers: workers, batch, device_seconds: used }) => ({
  per_minute: throughput.per_minute,
  ...latency,
  num_ready: queue.num_ready,
  work_seconds: queue.work_seconds,
  num_running: queue.num_running,
  num_workers: (workers.ready ?? 0) + (workers.occupied ?? 0),
  ...batch,
  device_seconds: Object.fromEntries(used.map(({ id, seconds }) => [id, seconds])),
});
