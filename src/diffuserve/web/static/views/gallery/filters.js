// The filters of the gallery, kept in the address under the API's names.
import { html, useEffect, useRef, useState } from "../../vendor/ui.js";
import { navigate } from "../../router.js";
import { request } from "../../api.js";
import { FINAL } from "../../components/job_state.js";
import { capitalized } from "../../sentence.js";

const NAMES = ["status", "model", "kind", "query", "batch_id", "prompt_of"];
const STATUSES = ["queued", "running", ...FINAL];
const KINDS = { "image.generate": "Images", "video.generate": "Clips", "audio.generate": "Sounds" };
const TYPING_MS = 300;

// Return the filters that an address names, as the query of `GET /v1/jobs` has them.
export function filtersFrom(query) {
  const named = NAMES.flatMap((name) => query.getAll(name).filter(Boolean).map((value) => [name, value]));
  return new URLSearchParams(named);
}

// Return the filters with one of them changed; an empty value drops it.
export function withFilter(filters, name, value) {
  const changed = new URLSearchParams(filters);
  changed.delete(name);
  if (value) changed.set(name, value);
  return changed;
}

const show = (filters) => navigate(`gallery${filters.size ? `?${filters}` : ""}`, { replace: true });

export function FilterBar({ filters }) {
  const choose = (name) => (event) => show(withFilter(filters, name, event.target.value));
  const models = useModels(filters.get("model"));
  return html`
    <form class="gallery-filters" role="search" aria-label="Filters" onSubmit=${(event) => event.preventDefault()}>
      <${Words} filters=${filters} />
      <${Choice} label="Status" name="status" filters=${filters} onChange=${choose("status")}
        values=${STATUSES.map((status) => [status, capitalized(status)])} />
      <${Choice} label="Model" name="model" filters=${filters} onChange=${choose("model")}
        values=${models.map((model) => [model, model])} />
      <${Choice} label="Kind" name="kind" filters=${filters} onChange=${choose("kind")}
        values=${Object.entries(KINDS)} />
      <${Narrowed} filters=${filters} />
    </form>`;
}

// The field keeps what is typed; the address follows when the typing pauses.
function Words({ filters }) {
  const known = filters.get("query") ?? "";
  const [text, setText] = useState(known);
  const typed = useRef(known);
  useEffect(() => {
    if (known !== typed.current) setText(known);
    typed.current = known;
  }, [known]);
  useEffect(() => {
    if (text.trim() === typed.current) return undefined;
    const timer = setTimeout(() => {
      typed.current = text.trim();
      show(withFilter(filters, "query", typed.current));
    }, TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return html`
    <label class="gallery-words">Words of the prompt
      <input type="search" maxlength="200" value=${text} placeholder="red circle"
        onInput=${(event) => setText(event.target.value)} />
    </label>`;
}

const Choice = ({ label, name, values, filters, onChange }) => html`
  <label>${label}
    <select value=${filters.get(name) ?? ""} onChange=${onChange}>
      <option value="">All</option>
      ${values.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
    </select>
  </label>`;

// Filters that only links set are told, and can be left.
function Narrowed({ filters }) {
  const narrowed = { batch_id: "One batch", prompt_of: "One prompt" };
  const named = Object.keys(narrowed).filter((name) => filters.has(name));
  return named.map((name) => html`
    <button type="button" key=${name} class="gallery-narrowed" aria-label=${`Show more than ${narrowed[name]}`}
      onClick=${() => show(withFilter(filters, name, ""))}>${narrowed[name]} ✕</button>`);
}

function useModels(chosen) {
  const [models, setModels] = useState([]);
  useEffect(() => {
    request("GET", "v1/models").then(({ data }) => setModels(data.map(({ id }) => id)), () => {});
  }, []);
  return chosen && !models.includes(chosen) ? [chosen, ...models] : models;
}
