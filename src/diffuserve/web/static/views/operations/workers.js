// The workers: a table that is sorted by its headers and filtered by state, model and name.
import { computed, html, signal } from "../../vendor/ui.js";
import { workers } from "./live.js";
import { count } from "./numbers.js";
import { steady } from "./steady.js";
import { modelsOf, shownIds, stateCounts } from "./worker_order.js";
import { WorkerRow } from "./worker_row.js";

const COLUMNS = [
  ["name", "Worker"],
  ["state", "State"],
  ["model", "Model"],
  ["device", "Device"],
  ["memory", "Memory"],
  ["jobs", "Jobs"],
  ["heartbeat", "Heartbeat"],
  ["price", "Price"],
];

const filter = signal({ state: "", model: "", words: "" });
const order = signal({ by: "state", isDown: false });
const ids = steady(() => shownIds(workers.value, filter.value, order.value));
const models = steady(() => modelsOf(workers.value));
const states = steady(() => stateCounts(workers.value).map(([state, number]) => `${state} (${count(number)})`));
const total = computed(() => workers.value.length);

export const Workers = () => html`
  <section class="panel" aria-labelledby="workers-title">
    <header>
      <h2 id="workers-title">Workers <${Total} /></h2>
      <${Filters} />
    </header>
    <${Table} />
  </section>
`;

function Total() {
  const shown = ids.value.length;
  const text = shown === total.value ? count(shown) : `${count(shown)} of ${count(total.value)}`;
  return html`<span class="total" role="status">${text}</span>`;
}

function Filters() {
  const set = (name) => (event) => (filter.value = { ...filter.value, [name]: event.target.value });
  return html`
    <div class="filters" role="group" aria-label="Filter workers">
      <${Choice} label="State" value=${filter.value.state} onInput=${set("state")}
        options=${states.value.map((text) => [text.split(" ")[0], text])} />
      <${Choice} label="Model" value=${filter.value.model} onInput=${set("model")}
        options=${models.value.map((model) => [model, model])} />
      <label>Name <input type="search" value=${filter.value.words} onInput=${set("words")} /></label>
    </div>
  `;
}

const Choice = ({ label, value, options, onInput }) => html`
  <label>
    ${label}${" "}
    <select value=${value} onInput=${onInput}>
      <option value="">all</option>
      ${options.map(([option, text]) => html`<option key=${option} value=${option}>${text}</option>`)}
    </select>
  </label>
`;

function Table() {
  return html`
    <div class="scroll tall" role="region" aria-labelledby="workers-title" tabindex="0">
      <table class="cards" role="table">
        <thead role="rowgroup">
          <tr role="row">
            ${COLUMNS.map(([by, text]) => html`<${Header} key=${by} by=${by} text=${text} />`)}
            <th role="columnheader" scope="col"><span class="hidden">Actions</span></th>
          </tr>
        </thead>
        <${Rows} />
      </table>
      <${Nothing} />
    </div>
  `;
}

const Rows = () => html`
  <tbody role="rowgroup">${ids.value.map((id) => html`<${WorkerRow} key=${id} id=${id} />`)}</tbody>
`;

function Header({ by, text }) {
  const { by: current, isDown } = order.value;
  const direction = isDown ? "descending" : "ascending";
  const sort = () => (order.value = { by, isDown: current === by && !isDown });
  return html`
    <th role="columnheader" scope="col" aria-sort=${current === by ? direction : null}>
      <button class="plain" onClick=${sort}>
        ${text}${current === by && html` <span aria-hidden="true">${isDown ? "↓" : "↑"}</span>`}
      </button>
    </th>
  `;
}

function Nothing() {
  if (ids.value.length > 0) return null;
  return total.value === 0
    ? html`<p class="empty">No worker has registered yet. <code>diffuserve worker</code> starts one.</p>`
    : html`<p class="empty">No worker matches the filter.</p>`;
}
