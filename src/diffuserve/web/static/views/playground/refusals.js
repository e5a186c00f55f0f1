// What went wrong, in words beside what caused it.
import { capitalized } from "../../sentence.js";

const FIELDS_OF_CODES = { prompt_blocked: "prompt", band_not_allowed: "priority", model_not_found: "model" };
const OTHER_NAMES = { size: "width", seconds: "num_frames" };

const REMEDIES = {
  output_blocked: "The server's image filter withheld it. Try another seed, or reword the prompt.",
  timeout: "It ran longer than it may. Try fewer steps, a smaller size or fewer images.",
  worker_lost:
    "The workers that ran it went away. Try again; if it happens again, tell the server's operator.",
  out_of_memory:
    "It does not fit into the worker's memory. Try a smaller size, fewer images or a shorter clip.",
  numerical_failure: "The model computed no valid pixels. Try another seed or sampler, or less guidance.",
  download_failed: "The worker could not read the input image. Upload it again.",
  upload_failed:
    "The result could not be stored. Try again; if it happens again, tell the server's operator.",
  output_not_written:
    "The worker could not write the file. Try again; the server's operator can free its disk.",
  internal_error: "Try again; if it happens again, tell the server's operator.",
};

// Return { fields: { name: message }, summary } of a refused request. A summary is for what no field caused.
export function refusalOf(error) {
  const { code, errors = [], detail = error.message, category } = error.problem ?? {};
  const fields = Object.fromEntries(
    errors.map(({ field, message }) => [fieldName(field), capitalized(message)]),
  );
  const own = FIELDS_OF_CODES[code];
  if (own) fields[own] = code === "prompt_blocked" ? blocked(category) : capitalized(detail);
  const seconds = error.retryAfter ?? null;
  return { code, fields, summary: Object.keys(fields).length ? null : capitalized(detail), seconds };
}

const fieldName = (path) => {
  const name = path.replace(/^input\./, "").split(".")[0];
  return OTHER_NAMES[name] ?? name;
};

const blocked = (category) =>
  `The policy of this server does not allow this prompt${category ? ` (${category})` : ""}. Reword it.`;

// Return what to do about a job that did not succeed.
export function remedyOf(job) {
  if (job.status === "canceled") return "It was canceled. Nothing more is charged.";
  if (job.status === "expired")
    return "It waited in the queue for longer than it was allowed to. Try again later.";
  return REMEDIES[job.error?.code] ?? "Change the settings, or try again.";
}
