// Jobs in words and files: what the gallery and the page of a job say about one. Pure.
import { duration } from "../../components/time.js";
import { capitalized } from "../../sentence.js";

export const VIDEO = "video.generate";
export const AUDIO = "audio.generate";

export const promptOf = (job) => job.prompt?.original ?? job.input.prompt ?? "";
export const artifactsOf = (job, ...roles) =>
  (job.result?.artifacts ?? []).filter(({ role }) => roles.includes(role)).sort((a, b) => a.index - b.index);
export const outputsOf = (job) => {
  const videos = artifactsOf(job, "video");
  return videos.length ? videos : artifactsOf(job, "image", "audio");
};
// Return the first file of a job that is a picture: its thumbnail, its poster or an image.
export const pictureOf = (job) =>
  [...artifactsOf(job, "thumbnail"), ...artifactsOf(job, "poster"), ...outputsOf(job)].find(
    ({ content_type: type }) => type.startsWith("image/"),
  );

const PHASES = {
  load: "Fetching the image", encode: "Reading the prompt", denoise: "Drawing", decode: "Decoding",
  filter: "Checking", upload: "Storing",
};

const WITHHELD = "the image filter withheld it";

// Return how a job without files ended, in a word, and why.
export const endOf = (job) =>
  isBlocked(job) ? ["Blocked", capitalized(WITHHELD)] : [capitalized(job.status), job.error ? stateOf(job) : ""];

// Return what a job does now, or why it has no files.
export function stateOf(job) {
  if (job.error) return isBlocked(job) ? `Blocked: ${WITHHELD}` : capitalized(job.error.message);
  if (job.status === "running") return stepOf(job);
  return job.status === "canceling" ? "Canceling…" : capitalized(job.status);
}

// Of a sound the error itself tells why.
export const isBlocked = (job) => job.error?.code === "output_blocked" && job.kind !== AUDIO;

function stepOf(job) {
  const { step, total, frames, num_frames: all } = job.progress;
  if (job.phase === "decode" && all) return `Decoded ${frames} of ${all} frames`;
  if (job.phase === "denoise" && total) return `Step ${step} of ${total}`;
  return PHASES[job.phase] ?? "Starting";
}

// Return seconds as a text, short ones in milliseconds.
export const brief = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : duration(seconds));
