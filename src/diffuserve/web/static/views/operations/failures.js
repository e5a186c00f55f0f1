// Jobs that failed in the last hour by error code, with an example that can be looked at and queued again.
import { html } from "../../vendor/ui.js";
import { Ago } from "./ago.js";
import { RequeueJob } from "./job_actions.js";
import { part } from "./live.js";
import { count } from "./numbers.js";

const failures = part("failures");

export function Failures() {
  const groups = failures.value.toSorted((first, second) => second.count - first.count);
  return html`
    <section class="panel" aria-labelledby="failures-title">
      <header><h2 id="failures-title">Failures in the last hour</h2></header>
      ${groups.length === 0
        ? html`<p class="empty">No job failed.</p>`
        : html`<ul class="rows">${groups.map((group) => html`<${Failure} key=${group.id} group=${group} />`)}</ul>`}
    </section>
  `;
}

const Failure = ({ group }) => html`
  <li>
    <span class="main">
      <span><b class="count">${count(group.count)}</b> × <code>${group.id}</code> <span class="quiet">last <${Ago} at=${group.last_at} /></span></span>
      <span class="message">${group.message}</span>
    </span>
    <span class="actions">
      <a data-view href=${`gallery/${group.example_job_id}`} aria-label=${`Example of ${group.id}`}>Example</a>
      <${RequeueJob} id=${group.example_job_id} code=${group.id} />
    </span>
  </li>
`;
