// The jobs of one tenant that wait or run, read on demand; each can be canceled.
import { html, useEffect, useSignal } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { Ago } from "./ago.js";
import { CancelJob } from "./job_actions.js";
import { shortId } from "./numbers.js";

const PAGE = 20;

export function TenantJobs({ tenant, onClose }) {
  const jobs = useSignal([]);
  const next = useSignal(undefined); // where the next page begins; null at the end
  const problem = useSignal("");
  const more = async () => {
    try {
      const page = await request("GET", pathOf(tenant, next.value));
      jobs.value = [...jobs.value, ...page.data];
      next.value = page.next;
    } catch (error) {
      problem.value = error.message;
    }
  };
  const replace = (changed) => (jobs.value = jobs.value.map((job) => (job.id === changed.id ? changed : job)));
  useEffect(() => void more(), []);
  return html`
    <section class="tenant-jobs" aria-label=${`Jobs of ${tenant}`}>
      <header>
        <h3>Jobs of ${tenant}, newest first</h3>
        <button class="small" onClick=${onClose}>Close</button>
      </header>
      ${problem.value && html`<p class="problem" role="alert">${problem.value}</p>`}
      ${jobs.value.length === 0 && next.value === null && html`<p class="empty">No job waits or runs any more.</p>`}
      <ul class="rows">${jobs.value.map((job) => html`<${TenantJob} key=${job.id} job=${job} onDone=${replace} />`)}</ul>
      ${next.value && html`<button class="small" onClick=${more}>Show more</button>`}
    </section>
  `;
}

function pathOf(tenant, after) {
  const query = new URLSearchParams({ tenant_id: tenant, limit: PAGE });
  for (const status of ["queued", "running", "canceling"]) query.append("status", status);
  if (after) query.set("after", after);
  return `v1/jobs?${query}`;
}

const TenantJob = ({ job, onDone }) => html`
  <li>
    <span class="main">
      <a data-view href=${`gallery/${job.id}`} title=${job.id}>${shortId(job.id)}</a>
      <span class="quiet">${job.status} · ${job.priority} · ${job.model} · <${Ago} at=${job.created_at} /></span>
      <span class="message">${job.input.prompt}</span>
    </span>
    ${["queued", "running"].includes(job.status) && html`<${CancelJob} id=${job.id} onDone=${onDone} />`}
  </li>
`;
