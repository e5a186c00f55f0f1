// What a job is doing, in a line and as a part of the whole. Pure.
import { duration } from "../../components/time.js";
import { about, isSlow } from "./seconds.js";
import { VIDEO } from "./job_request.js";
import { capitalized } from "../../sentence.js";

const DENOISING = 0.9; // of a clip's bar; decoding is the rest
const PHASES = {
  load: "Fetching the image",
  encode: "Reading the prompt",
  denoise: "Drawing",
  decode: "Decoding",
  filter: "Checking",
  upload: "Storing",
};

// Return the part of the work that is done, in 0…1.
export function fractionOf(job) {
  const { fraction, frames, num_frames: all } = job.progress;
  if (job.status === "succeeded") return 1;
  return job.kind === VIDEO && all > 0 ? DENOISING * fraction + (1 - DENOISING) * (frames / all) : fraction;
}

// Return what the job is doing now.
export function stageOf(job) {
  if (job.status === "queued") return placeOf(job.queue);
  if (job.status === "canceling") return "Canceling…";
  const { step, total, frames, num_frames: all } = job.progress;
  if (job.phase === "decode" && job.kind === VIDEO && all > 0) return `Decoded ${frames} of ${all} frames`;
  if (job.phase === "denoise" || !job.phase) return withRest(step ? `Step ${step} of ${total}` : "Starting", job);
  return PHASES[job.phase] ?? capitalized(job.phase);
}

// Of a job that takes long the line says how long, from its beginning on.
function withRest(stage, { cost_seconds: cost, progress: { fraction } }) {
  const rest = cost * (1 - fraction);
  return isSlow(rest) ? `${stage} · ${about(rest)} left` : stage;
}

function placeOf(queue) {
  if (!queue) return "Queued";
  if (queue.reason) return `Waiting: ${queue.reason}`;
  const [first, last] = [queue.ahead + 1, (queue.ahead_high ?? queue.ahead) + 1];
  const place =
    last > first
      ? `Place ${first}–${last} in the queue`
      : first === 1
        ? "Next in the queue"
        : `Place ${first} in the queue`;
  return `${place} · done in ${rangeOf(queue.eta_s_low, queue.eta_s_high)}`;
}

export function rangeOf(low, high) {
  const [from, to] = [rounded(low), rounded(high)];
  if (to < 1) return "less than a second";
  return from === to ? duration(to) : to < 120 ? `${from}–${to} s` : `${duration(from)} to ${duration(to)}`;
}

const rounded = (seconds) => (seconds < 10 ? Math.round(seconds * 2) / 2 : Math.round(seconds));

const TIMINGS = {
  queue: "Waiting for its turn",
  load: "Fetching images",
  encode: "Reading the prompt",
  denoise: "Drawing",
  decode: "Decoding",
  filter: "Checking",
  video_encode: "Writing the clip",
  upload: "Storing",
  device: "Computing time that counts",
};

// Return [[name, seconds]] of a finished job: the wait, the run, and its parts by the worker's clock.
export function timingsOf(job) {
  const between = (start, end) => (start && end ? (Date.parse(end) - Date.parse(start)) / 1000 : null);
  const whole = [
    ["In the queue", between(job.created_at, job.started_at)],
    ["Running", between(job.started_at, job.finished_at)],
  ];
  const parts = Object.entries(job.result?.timings ?? {}).map(([name, seconds]) => [partName(name), seconds]);
  return [...whole.filter(([, seconds]) => seconds !== null), ...parts];
}

function partName(timing) {
  const name = timing.replace(/_seconds$/, "");
  return TIMINGS[name] ?? capitalized(name.replaceAll("_", " "));
}
