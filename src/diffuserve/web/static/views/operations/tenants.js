// Who uses the devices: each tenant's share as a bar, with a mark where its fair share is.
import { html } from "../../vendor/ui.js";
import { part } from "./live.js";
import { count, percent, seconds } from "./numbers.js";

const tenants = part("tenants");
const numTenants = part("num_tenants");

export function Tenants() {
  const rows = tenants.value.toSorted((a, b) => b.device_seconds - a.device_seconds || b.num_ready - a.num_ready);
  return html`
    <section class="panel" aria-labelledby="tenants-title">
      <header>
        <h2 id="tenants-title">Tenants</h2>
        <p class="key"><span class="used"></span> device time, last 5 min <span class="fair"></span> fair share</p>
      </header>
      ${rows.length === 0
        ? html`<p class="empty">No tenant used a device lately.</p>`
        : html`<div class="scroll tall" role="region" aria-labelledby="tenants-title" tabindex="0">
            <ul class="shares">${rows.map((tenant) => html`<${Share} key=${tenant.id} tenant=${tenant} />`)}</ul>
          </div>`}
      ${numTenants.value > rows.length && html`<p class="empty">The ${rows.length} largest of ${count(numTenants.value)}.</p>`}
    </section>
  `;
}

const place = (share) => `${100 * Math.min(share, 1)}%`;

const Share = ({ tenant }) => html`
  <li>
    <span class="name">${tenant.id}</span>
    <span class="share" role="img" aria-label=${`${percent(tenant.share)} of device time, fair share ${percent(tenant.fair_share)}`}>
      <span class="used" style=${{ width: place(tenant.share) }}></span>
      <span class="fair" style=${{ left: place(tenant.fair_share) }}></span>
    </span>
    <span class="number" aria-hidden="true">${percent(tenant.share)} <span class="quiet">of ${percent(tenant.fair_share)}</span></span>
    <span class="quiet">${seconds(tenant.device_seconds)}, ${count(tenant.num_ready)} wait, ${count(tenant.num_running)} run</span>
  </li>
`;
