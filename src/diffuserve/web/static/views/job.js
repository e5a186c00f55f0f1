// The page of one job: what it made, all that is known of it, and what can be done with it.
import { html, useEffect, useMemo, useState } from "../vendor/ui.js";
import { capitalized } from "../sentence.js";
import { Problem } from "../components/problem.js";
import { Actions } from "./job/actions.js";
import { Facts } from "./job/facts.js";
import { Media } from "./job/media.js";
import { Siblings } from "./job/siblings.js";
import { Timeline } from "./job/timeline.js";
import { WatchedJob } from "./job/watched_job.js";
import { isBlocked, promptOf, stateOf } from "./gallery/job_words.js";

export default function Job({ jobId }) {
  const watched = useMemo(() => new WatchedJob(jobId), [jobId]);
  useEffect(() => {
    watched.open();
    return () => watched.stop();
  }, [watched]);
  const { value: job } = watched.job;
  if (watched.error.value?.status === 404) return html`<${NotThere} wasThere=${job !== null} />`;
  if (!job) return html`<h1>Job</h1><p role="status">Loading…</p><${Problem} error=${watched.error.value} />`;
  return html`
    <article class="job">
      <header class="job-head">
        <p><a data-view href="gallery">Gallery</a> / <span class="job-id">${job.id}</span></p>
        <h1>${promptOf(job)}</h1>
        <p class="job-state" role="status"><span class=${`job-status ${job.status}`}>${capitalized(job.status)}</span>
          ${job.status === "running" && html` <span class="hint">${stateOf(job)}</span>`}</p>
      </header>
      <div class="job-columns">
        <div>
          <${Media} job=${job} previews=${watched.previews.value} isLive=${watched.isLive.value} />
          <${Reason} job=${job} />
          <${Timeline} job=${job} events=${watched.events.value} />
        </div>
        <div>
          <${Actions} watched=${watched} job=${job} />
          <${Facts} job=${job} />
          <${Raw} job=${job} events=${watched.events.value} />
        </div>
      </div>
      <${Siblings} job=${job} />
    </article>`;
}

// Why it failed, and what its worker warns of.
function Reason({ job }) {
  const warnings = job.result?.warnings ?? [];
  return html`
    ${job.error && html`
      <div class="job-reason" role="alert">
        <p><b>${isBlocked(job) ? "Blocked" : capitalized(job.status)}</b> <code>${job.error.code}</code></p>
        <p>${capitalized(job.error.message)}</p>
      </div>`}
    ${warnings.length > 0 && html`<ul class="job-warnings">${warnings.map((text) => html`<li>${text}</li>`)}</ul>`}`;
}

function Raw({ job, events }) {
  const [isOpen, setOpen] = useState(false);
  return html`
    <details class="job-raw" onToggle=${(event) => setOpen(event.target.open)}>
      <summary>JSON</summary>
      ${isOpen && html`<pre tabindex="0">${JSON.stringify({ job, events }, null, 2)}</pre>`}
    </details>`;
}

const NotThere = ({ wasThere }) => html`
  <div class="job-not-there">
    <h1>${wasThere ? "This job was deleted" : "There is no such job"}</h1>
    <p>${wasThere ? "Its files are gone too." : "It was deleted, it has expired, or its address is wrong."}</p>
    <p><a class="button" data-view href="gallery">To the gallery</a></p>
  </div>`;
