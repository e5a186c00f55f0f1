// What is known of a job: its input with every default, who did it, what it cost and what filters found.
import { html } from "../../vendor/ui.js";
import { isOperator, session } from "../../session.js";
import { Ago } from "../../components/time.js";
import { brief } from "../gallery/job_words.js";

export function Facts({ job }) {
  return html`
    <section aria-labelledby="job-facts-name">
      <h2 id="job-facts-name">Facts</h2>
      <dl class="job-facts">${factsOf(job).map(([name, value]) => html`<${Fact} name=${name} value=${value} />`)}</dl>
      <h2>Input</h2>
      <dl class="job-facts">
        ${Object.entries(job.input).filter(([name]) => name !== "prompt").map(([name, value]) => html`
          <${Fact} name=${name} value=${textOf(value)} />`)}
      </dl>
    </section>`;
}

const Fact = ({ name, value }) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function factsOf(job) {
  const { actual_seconds: actual, cost_seconds: predicted } = job;
  const facts = [
    ["Model", job.model + (job.requested_model ? `, in place of ${job.requested_model}` : "")],
    ["Kind", { "video.generate": "Clip", "audio.generate": "Sound" }[job.kind] ?? "Image"],
    ["Priority", job.priority],
    ["Tenant", isOperator.value && !session.value.is_open ? job.tenant_id : null],
    ["Worker", job.worker_id],
    ["Attempts", job.attempt || null],
    ["Device-seconds", actual === null ? null : `${brief(actual)} (predicted: ${brief(predicted)})`],
    ["Predicted device-seconds", actual === null ? brief(predicted) : null],
    ["Submitted", html`<${Ago} at=${job.created_at} />`],
    ["Deadline", job.deadline && html`<${Ago} at=${job.deadline} />${job.best_effort ? ", best effort" : ""}`],
    ["Ended", job.finished_at && html`<${Ago} at=${job.finished_at} />`],
    ["Batch", job.batch_id && html`
      <a data-view href=${`gallery?batch_id=${job.batch_id}`}>${job.batch_id}</a>`],
    ["Custom id", job.custom_id],
    ["Prompt as written", job.prompt && job.prompt.original !== job.input.prompt ? job.prompt.original : null],
    ["Expansion", job.prompt?.expansion ? wordsOf(job.prompt) : null],
    ["Prompt filter", job.prompt?.filter ? verdictOf(job.prompt.verdict) : null],
    ["Image filter", verdictsOf(job, "image")],
    ["Judge of sounds", verdictsOf(job, "sound")],
    ["Metadata", Object.keys(job.metadata ?? {}).length ? JSON.stringify(job.metadata) : null],
  ];
  return facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
}

const wordsOf = ({ expansion, reason }) => (reason ? `${expansion}: ${reason}` : expansion);

const ACTIONS = { allow: "passed", flag: "passed, with a note", blur: "blurred", block: "blocked" };

// Say in words what a filter decided, and for which categories.
function verdictOf({ action, findings = [] }) {
  const categories = [...new Set(findings.map(({ category }) => category))];
  return (ACTIONS[action] ?? action) + (categories.length ? ` (${categories.join(", ")})` : "");
}

function verdictsOf(job, stage) {
  const record = (job.result ?? job.error)?.safety?.[stage];
  const verdicts = record?.verdicts ?? [];
  if (!verdicts.length) return null;
  const numbered = (verdict, place) => (verdicts.length > 1 ? `${place + 1}: ` : "") + verdictOf(verdict);
  return verdicts.map(numbered).join(", ");
}
