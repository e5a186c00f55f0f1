// Running jobs of all workers, with their steps; each can be canceled.
import { computed, html, useComputed, useSignal } from "../../vendor/ui.js";
import { CancelJob } from "./job_actions.js";
import { part, workers } from "./live.js";
import { Meter } from "./meter.js";
import { count, shortId, steps } from "./numbers.js";
import { steady } from "./steady.js";

const PAGE = 10;

const queue = part("queue");
const jobsById = computed(() => new Map(workers.value.flatMap(({ jobs }) => jobs.map((job) => [job.id, job]))));
const workerNames = computed(
  () => new Map(workers.value.flatMap(({ id, name, jobs }) => jobs.map((job) => [job.id, name || id]))),
);
const jobIds = steady(() => [...jobsById.value.keys()].sort());

export function Running() {
  const limit = useSignal(PAGE);
  const shown = jobIds.value.slice(0, limit.value);
  return html`
    <section class="panel" aria-labelledby="running-title">
      <header><h2 id="running-title">Running jobs <span class="total">${count(queue.value.num_running)}</span></h2></header>
      ${shown.length === 0
        ? html`<p class="empty">No job runs now.</p>`
        : html`<ul class="rows">${shown.map((id) => html`<${RunningJob} key=${id} id=${id} />`)}</ul>`}
      ${jobIds.value.length > shown.length &&
      html`<button class="small" onClick=${() => (limit.value += 5 * PAGE)}>Show more</button>`}
    </section>
  `;
}

function RunningJob({ id }) {
  const job = useComputed(() => jobsById.value.get(id)).value;
  const worker = useComputed(() => workerNames.value.get(id)).value;
  if (!job) return null;
  const { step, total, phase } = job;
  return html`
    <li>
      <span class="main">
        <a data-view href=${`gallery/${id}`} title=${id}>${shortId(id)}</a>
        <span class="quiet">${job.tenant_id} · ${job.model} · ${worker}</span>
      </span>
      <${Meter} share=${total ? step / total : 0} label=${`step ${step} of ${total}`}
        text=${phase === null || phase === "denoise" ? steps(step, total) : phase} />
      <${CancelJob} id=${id} isCanceling=${job.is_canceling} />
    </li>
  `;
}
