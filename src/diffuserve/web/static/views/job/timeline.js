// The timeline of a job, drawn to scale, and the same as a list of its phases.
import { html, useEffect, useState } from "../../vendor/ui.js";
import { isFinal } from "../../components/job_state.js";
import { brief } from "../gallery/job_words.js";
import { phasesOf, totalOf } from "./phases.js";

export function Timeline({ job, events }) {
  const now = useNow(!isFinal(job));
  const phases = phasesOf(job, events, now);
  const total = totalOf(phases);
  if (!phases.length) return null;
  const share = (seconds) => `${(100 * seconds) / (total || 1)}%`;
  return html`
    <section class="job-timeline" aria-labelledby="job-timeline-name">
      <h2 id="job-timeline-name">Timeline <small>${brief(total)} in all</small></h2>
      <div class="job-scale" aria-hidden="true">
        ${phases.map((phase) => html`
          <span class=${`job-phase ${phase.kind}`} title=${`${phase.name}: ${brief(phase.end - phase.start)}`}
            style=${{ left: share(phase.start), width: share(phase.end - phase.start) }} />`)}
      </div>
      <ol class="job-phases">
        ${phases.map((phase) => html`
          <li data-start=${phase.start} data-end=${phase.end}>
            <span class=${`job-key ${phase.kind}`} aria-hidden="true" />
            <span>${phase.name}${phase.attempt > 1 ? ` (attempt ${phase.attempt})` : ""}
              ${phase.note && html` <span class="hint">${phase.note}</span>`}</span>
            <span class="job-seconds">${brief(phase.end - phase.start)}</span>
          </li>`)}
      </ol>
    </section>`;
}

function useNow(isRunning) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    setNow(Date.now());
    if (!isRunning) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [isRunning]);
  return now;
}
