// One worker of the table. It renders when its own worker changed, not when another did.
import { html, useComputed } from "../../vendor/ui.js";
import { askToDrain } from "./drain.js";
import { Ago } from "./ago.js";
import { workersById } from "./live.js";
import { Meter } from "./meter.js";
import { bytes, count, percent, plural, steps } from "./numbers.js";
import { deviceOf, memoryShare } from "./worker_order.js";
import { stateOf, WorkerState } from "./worker_state.js";

const SHOWN_JOBS = 4;

export function WorkerRow({ id }) {
  const worker = useComputed(() => workersById.value.get(id)).value;
  if (!worker) return null;
  return html`
    <tr role="row" class=${`worker is-${stateOf(worker)}`}>
      <th role="rowheader" scope="row"><${Name} worker=${worker} /></th>
      <td role="cell" data-label="State"><${WorkerState} worker=${worker} /></td>
      <td role="cell" data-label="Model"><span><${Models} worker=${worker} /></span></td>
      <td role="cell" data-label="Device">${deviceOf(worker)}</td>
      <td role="cell" data-label="Memory"><${Memory} worker=${worker} /></td>
      <td role="cell" data-label="Jobs"><${Jobs} worker=${worker} /></td>
      <td role="cell" data-label="Heartbeat"><${Ago} at=${worker.heartbeat_at} /></td>
      <td role="cell" data-label="Price" class="number"><${Price} worker=${worker} /></td>
      <td role="cell" class="action"><${Drain} worker=${worker} /></td>
    </tr>
  `;
}

function Name({ worker }) {
  return html`
    <span class="name" title=${worker.id}>${worker.name || worker.id}</span>
    ${worker.role !== "all" && html` <span class="tag">${worker.role}</span>`}
    ${worker.is_spot && html` <span class="tag">spot</span>`}
  `;
}

function Models({ worker }) {
  const resident = new Set(worker.report.resident_models);
  return worker.models.map(
    (model, place) => html`
      ${place > 0 && ", "}
      <span class=${resident.has(model) ? "" : "absent"} title=${resident.has(model) ? "in memory" : "not in memory"}>
        ${model}
      </span>
    `,
  );
}

function Memory({ worker }) {
  const { memory_bytes: used, memory_limit_bytes: limit } = worker.report;
  const share = memoryShare(worker);
  if (share === null) return used ? bytes(used) : "–";
  const label = `Memory ${percent(share)}: ${bytes(used)} of ${bytes(limit)}`;
  return html`<${Meter} share=${share} label=${label} text=${bytes(used)} tone=${share > 0.95 ? "warning" : "accent"} />`;
}

function Jobs({ worker }) {
  const shown = worker.jobs.slice(0, SHOWN_JOBS);
  if (worker.report.loading) return loadingText(worker.report.loading);
  if (worker.num_leases === 0) return html`<span class="quiet">idle</span>`;
  return html`
    <span class="job-bars">
      ${shown.map(
        ({ id, step, total }) => html`
          <a data-view key=${id} href=${`gallery/${id}`} title=${id} aria-label=${`${id}: ${total ? `step ${step} of ${total}` : "starting"}`}>
            <${Meter} share=${total ? step / total : 0} text=${steps(step, total)} />
          </a>
        `,
      )}
      ${worker.num_leases > shown.length && html`<span class="more">+${count(worker.num_leases - shown.length)}</span>`}
    </span>
  `;
}

function loadingText({ phase, bytes_read: read, bytes_total: total }) {
  return total ? `${phase} ${percent(Math.min(read / total, 1))}` : phase;
}

function Price({ worker }) {
  return worker.price_per_hour === null ? "–" : `${worker.price_per_hour} /h`;
}

function Drain({ worker }) {
  if (worker.state === "lost") return null;
  if (worker.is_draining) return html`<span class="quiet">${plural(worker.num_leases, "job")} left</span>`;
  return html`<button class="small" onClick=${() => askToDrain(worker)} aria-label=${`Drain ${worker.name || worker.id}`}>Drain</button>`;
}
