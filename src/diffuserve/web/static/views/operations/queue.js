// The queue: what waits by band, and by band and tenant, with a tenant's jobs on demand.
import { computed, html, signal, useComputed } from "../../vendor/ui.js";
import { Ago } from "./ago.js";
import { part } from "./live.js";
import { count, seconds } from "./numbers.js";
import { steady } from "./steady.js";
import { TenantJobs } from "./tenant_jobs.js";

const queue = part("queue");
const lanes = part("lanes");
const numLanes = part("num_lanes");
const lanesById = computed(() => new Map(lanes.value.map((lane) => [lane.id, lane])));
// The lanes with the most work first.
const laneIds = steady(() =>
  lanes.value.toSorted((first, second) => second.work_seconds - first.work_seconds).map((lane) => lane.id),
);
const openTenant = signal(null);

export const Queue = () => html`
  <section class="panel" aria-labelledby="queue-title">
    <header><h2 id="queue-title">Queue</h2></header>
    <${Bands} />
    <${Lanes} />
    ${openTenant.value !== null &&
    html`<${TenantJobs} key=${openTenant.value} tenant=${openTenant.value} onClose=${() => (openTenant.value = null)} />`}
  </section>
`;

const Work = ({ row }) => html`
  <td class="number">${count(row.num_ready)}</td>
  <td class="number">${row.num_ready ? seconds(row.work_seconds) : "–"}</td>
  <td class="number">${row.oldest_at ? html`<${Ago} at=${row.oldest_at} />` : "–"}</td>
`;

const Columns = ({ first }) => html`
  <thead>
    <tr>
      ${first.map((text) => html`<th key=${text} scope="col">${text}</th>`)}
      <th scope="col" class="number">Jobs</th><th scope="col" class="number">Work</th>
      <th scope="col" class="number">Oldest</th>
    </tr>
  </thead>
`;

const Bands = () => html`
  <table>
    <caption class="hidden">Waiting jobs by band</caption>
    <${Columns} first=${["Band"]} />
    <tbody>
      ${queue.value.bands.map(
        (band) => html`<tr key=${band.id}><th scope="row">${band.id}</th><${Work} row=${band} /></tr>`,
      )}
    </tbody>
  </table>
`;

function Lanes() {
  if (laneIds.value.length === 0) return html`<p class="empty">No jobs wait.</p>`;
  return html`
    <div class="scroll tall" role="region" aria-label="Waiting jobs by tenant" tabindex="0">
      <table>
        <caption class="hidden">Waiting jobs by tenant and band</caption>
        <${Columns} first=${["Tenant", "Band"]} />
        <tbody>${laneIds.value.map((id) => html`<${Lane} key=${id} id=${id} />`)}</tbody>
      </table>
      ${numLanes.value > laneIds.value.length &&
      html`<p class="empty">The ${laneIds.value.length} with the most work of ${count(numLanes.value)}.</p>`}
    </div>
  `;
}

function Lane({ id }) {
  const lane = useComputed(() => lanesById.value.get(id)).value;
  if (!lane) return null;
  const isOpen = openTenant.value === lane.tenant_id;
  const toggle = () => (openTenant.value = isOpen ? null : lane.tenant_id);
  return html`
    <tr>
      <th scope="row">
        <button class="plain link" aria-expanded=${String(isOpen)} onClick=${toggle}>${lane.tenant_id}</button>
      </th>
      <td>${lane.band}</td>
      <${Work} row=${lane} />
    </tr>
  `;
}
