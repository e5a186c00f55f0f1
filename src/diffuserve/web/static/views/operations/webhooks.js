// Webhooks that fail, with the last response or error; a disabled one can be enabled again.
import { html } from "../../vendor/ui.js";
import { Action } from "./action.js";
import { Ago } from "./ago.js";
import { part } from "./live.js";
import { plural } from "./numbers.js";
import { request } from "../../api.js";

const webhooks = part("webhooks");

export const Webhooks = () => html`
  <section class="panel" aria-labelledby="webhooks-title">
    <header><h2 id="webhooks-title">Webhooks that fail</h2></header>
    ${webhooks.value.length === 0
      ? html`<p class="empty">All deliveries arrive.</p>`
      : html`<ul class="rows">${webhooks.value.map((hook) => html`<${Webhook} key=${hook.id} webhook=${hook} />`)}</ul>`}
  </section>
`;

const Webhook = ({ webhook }) => html`
  <li>
    <span class="main">
      <span class="url">${webhook.url}</span>
      <span class="quiet">
        ${webhook.tenant_id} · ${plural(webhook.num_failed, "failed delivery").replace("deliverys", "deliveries")}
        ${webhook.last_at && html` · last <${Ago} at=${webhook.last_at} />`}
      </span>
      <span class="message">${problemOf(webhook)}</span>
    </span>
    ${webhook.is_disabled &&
    html`<${Action} label="Enable" title=${`Enable ${webhook.url}`} done="enabled"
      act=${() => request("POST", `v1/webhooks/${webhook.id}/enable`)} />`}
  </li>
`;

function problemOf({ last_status: status, last_error: error, is_disabled: isDisabled }) {
  const problem = error || (status ? `responded with ${status}` : "no response");
  return isDisabled ? `Disabled: ${problem}` : problem;
}
