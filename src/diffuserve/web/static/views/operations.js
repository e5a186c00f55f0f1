// The operators' view: whether all is well, and if not, where to look and what to do.
import { computed, html, useEffect } from "../vendor/ui.js";
import { isOperator, session } from "../session.js";
import { Charts } from "./operations/charts.js";
import { Question } from "./operations/confirm.js";
import { Failures } from "./operations/failures.js";
import { addPoint, loadHistory } from "./operations/history.js";
import { Freshness } from "./operations/freshness.js";
import { snapshot, startLive } from "./operations/live.js";
import { Queue } from "./operations/queue.js";
import { Running } from "./operations/running.js";
import { Tenants } from "./operations/tenants.js";
import { Tiles } from "./operations/tiles.js";
import { Verdict } from "./operations/verdict.js";
import { Webhooks } from "./operations/webhooks.js";
import { Workers } from "./operations/workers.js";

const hasSnapshot = computed(() => snapshot.value !== null);

export default function Operations() {
  if (session.value === null) return html`<h1>Operations</h1>`;
  return isOperator.value ? html`<${Board} />` : html`<${NoOperator} />`;
}

const NoOperator = () => html`
  <h1>Operations</h1>
  <p class="notice">
    This view needs an operator's key. Sign in with one; <code>diffuserve keys create --role operator</code>
    ${" "}makes it on the server.
  </p>
`;

function Board() {
  useEffect(() => startLive({ onSnapshot: loadHistory, onChange: addPoint }), []);
  return html`
    <div class="operations">
      <header><h1>Operations</h1><${Freshness} /></header>
      ${hasSnapshot.value ? html`<${Parts} />` : html`<p class="empty" role="status">Reading the state of the server…</p>`}
      <${Question} />
    </div>
  `;
}

const Parts = () => html`
  <${Verdict} />
  <${Tiles} />
  <${Charts} />
  <${Workers} />
  <div class="columns"><${Queue} /><${Tenants} /></div>
  <${Running} />
  <div class="columns"><${Failures} /><${Webhooks} /></div>
`;
