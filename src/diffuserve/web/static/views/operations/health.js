// Whether all is well, in words: the line that an operator reads first.
import { count, plural, seconds } from "./numbers.js";
import { stateOf } from "./worker_state.js";

const LEVELS = ["bad", "warning", "good"];
const MANY_FAILURES = 0.2; // of the jobs that ended in the last minute
const FEW_JOBS = 5;
const LONG_WAIT_SECONDS = 600;
const FINDERS = [noWorkerReady, lostWorkers, stalledWorkers, manyFailures, longWait, failingWebhooks];

// Return { level, text, notes } of a snapshot: its gravest finding, and the other ones. `now` is the time of
// the server, `notReadySeconds` for how long no worker has been ready, in seconds; null where it is not known.
export function verdictOf(snapshot, now, notReadySeconds) {
  const findings = FINDERS.flatMap((find) => find(snapshot, now, notReadySeconds) ?? []);
  if (findings.length === 0) return { level: "good", text: `All well: ${wellText(snapshot)}`, notes: [] };
  findings.sort((first, second) => LEVELS.indexOf(first.level) - LEVELS.indexOf(second.level));
  const [gravest, ...others] = findings;
  return { ...gravest, notes: others.map((finding) => finding.text) };
}

const bad = (text) => ({ level: "bad", text });
const warning = (text) => ({ level: "warning", text });
const numReady = (workers) => workers.filter((worker) => ["ready", "occupied"].includes(stateOf(worker))).length;
const waiting = (number) => `${plural(number, "job")} ${number === 1 ? "waits" : "wait"}`;

function wellText({ workers, queue }) {
  const ready = `${plural(numReady(workers), "worker")} ready`;
  if (queue.num_ready === 0) return `${ready}, no jobs wait`;
  return `${ready}, ${waiting(queue.num_ready)} about ${seconds(queue.work_seconds / numReady(workers))}`;
}

function noWorkerReady({ ready, queue }, now, notReadySeconds) {
  if (ready.is_ready) return null;
  const since = notReadySeconds >= 1 ? ` since ${seconds(notReadySeconds)}` : "";
  const reason = ready.reason?.replace(/^no worker is ready: /, "");
  const why = reason ? ` (${reason})` : "";
  return queue.num_ready
    ? bad(`${queue.num_ready === 1 ? "A job waits" : "Jobs wait"}: no worker is ready${since}${why}`)
    : warning(`No worker is ready${since}${why}`);
}

function lostWorkers({ workers }) {
  const lost = workers.filter((worker) => worker.state === "lost").map((worker) => worker.name || worker.id);
  if (lost.length === 0) return null;
  const names = lost.length <= 3 ? ` (${lost.join(", ")})` : "";
  return warning(`${plural(lost.length, "worker")} lost: ${lost.length === 1 ? "its" : "their"} heartbeats have stopped${names}`);
}

function stalledWorkers({ workers }) {
  const number = workers.filter((worker) => worker.state === "stalled").length;
  return number ? warning(`${plural(number, "worker")} stuck and being restarted`) : null;
}

function manyFailures({ throughput, failures }) {
  const { failed, ...others } = throughput.per_minute;
  const ended = Object.values(others).reduce((sum, number) => sum + number, failed);
  if (failed < FEW_JOBS || failed < MANY_FAILURES * ended) return null;
  const most = failures.toSorted((first, second) => second.count - first.count)[0];
  return warning(`${count(failed)} of ${plural(ended, "job")} failed in the last minute${most ? `, most with ${most.id}` : ""}`);
}

function longWait({ ready, queue }, now) {
  const waited = queue.oldest_at ? now - Date.parse(queue.oldest_at) / 1000 : 0;
  return ready.is_ready && waited > LONG_WAIT_SECONDS ? warning(`The oldest job has waited ${seconds(waited)}`) : null;
}

function failingWebhooks({ webhooks }) {
  return webhooks.length ? warning(`${plural(webhooks.length, "webhook")} ${webhooks.length === 1 ? "fails" : "fail"}`) : null;
}
