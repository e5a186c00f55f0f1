// The phases of a job on one scale of time, from its stored events and the timings of its result. Pure.
// Events are by the server's clock. Within an attempt the worker's timings tell how long each phase took; what
// they do not tell, such as fetching images and storing files, is the rest.

const ORDER = [
  ["queue_seconds", "wait for its turn"], ["encode_seconds", "encode"], ["denoise_seconds", "steps"],
  ["decode_seconds", "decode"], ["filter_seconds", "filter"], ["video_encode_seconds", "write"],
  ["upload_seconds", "upload"],
];
const AFTER = { fell_back: "queue", denoised: "queue", preempted: "queue", interrupted: "queue", requeued: "queue" };

// Return [{ name, kind, start, end, attempt, note }] in seconds from the submission, in their order, without
// gaps. `now` is the end of what still goes on, in milliseconds.
export function phasesOf(job, events, now) {
  const begin = Date.parse(job.created_at);
  const at = (event) => Math.max(0, (Date.parse(event.created_at) - begin) / 1000);
  const stretches = [];
  let since = 0;
  let name = "queue";
  let attempt = 0;
  for (const event of events) {
    if (event.type === "queued" || event.type === "canceling") continue;
    const end = Math.max(since, at(event));
    stretches.push({ name, start: since, end, attempt, ending: event });
    since = end;
    name = event.type === "running" ? "run" : AFTER[event.type] ?? null;
    if (event.type === "running") attempt = event.data.attempt;
  }
  const isOver = name === null || !events.length;
  const upTo = Math.max(since, (now - begin) / 1000);
  if (!isOver) stretches.push({ name, start: since, end: upTo, attempt, ending: null });
  const handedOver = stretches.findIndex(({ ending }) => ending?.type === "denoised");
  return stretches.flatMap((stretch, place) => {
    const isDecoding = handedOver >= 0 && place > handedOver;
    return stretch.name === "run" ? runOf(stretch, job, isDecoding) : [queueOf(stretch)];
  });
}

// Return the seconds from the submission to the end of the last phase.
export const totalOf = (phases) => phases.at(-1)?.end ?? 0;

const queueOf = ({ start, end, attempt }) => ({ name: "queue", kind: "queue", start, end, attempt, note: "" });

// An attempt that led to the result is told by its phases, another by how it ended.
// The timings of a job of two phases are those of both, so that the second shows its own alone.
function runOf({ start, end, attempt, ending }, job, isDecoding) {
  const timings = job.result?.timings ?? {};
  if (ending?.type !== "succeeded") {
    if (!ending) return [{ name: job.phase ?? "run", kind: "run", start, end, attempt, note: "" }];
    const isWhole = ending.type === "denoised"; // the other phase follows in another attempt
    const name = isWhole ? "encode and steps" : "attempt";
    return [{ name, kind: isWhole ? "steps" : "lost", start, end, attempt, note: noteOf(ending) }];
  }
  const told = isDecoding ? ORDER.slice(3) : ORDER;
  const known = told.map(([key, name]) => [name, timings[key] ?? 0]).filter(([, seconds]) => seconds > 0);
  const sum = known.reduce((total, [, seconds]) => total + seconds, 0);
  const scale = sum > end - start && sum > 0 ? (end - start) / sum : 1; // two clocks, or two phases of one job
  const load = Math.min(timings.load_seconds ?? 0, Math.max(0, end - start - sum));
  const phases = [];
  let since = start;
  for (const [name, seconds] of [["load", load], ...known]) {
    if (seconds <= 0) continue;
    const upTo = Math.min(end, since + seconds * scale);
    phases.push({ name, kind: kindOf(name), start: since, end: upTo, attempt, note: "" });
    since = upTo;
  }
  const rest = timings.upload_seconds === undefined ? "store and report" : "report";
  phases.push({ name: rest, kind: "store", start: since, end, attempt, note: "" });
  return phases;
}

const KINDS = { load: "load", encode: "encode", steps: "steps", decode: "decode", filter: "filter" };
const kindOf = (name) => KINDS[name] ?? (name === "upload" || name === "write" ? "store" : "queue");

function noteOf(event) {
  if (event.type !== "requeued") return event.type;
  return `queued again: ${String(event.data.cause).replaceAll("_", " ")}`;
}
