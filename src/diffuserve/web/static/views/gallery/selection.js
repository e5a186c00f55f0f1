// Several jobs selected: which ones, and what can be done with them.
import { html, useState } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { Confirm } from "../../components/dialog.js";

const MOST_IN_ARCHIVE = 100; // the API's limit
const AT_ONCE = 6;

// Return the ids that are selected after a click on `id`; with shift all between the last click and this one.
export function afterClick(selected, ids, { id, last, isRange }) {
  const changed = new Set(selected);
  const places = [ids.indexOf(last), ids.indexOf(id)].sort((a, b) => a - b);
  const touched = isRange && places[0] >= 0 ? ids.slice(places[0], places[1] + 1) : [id];
  const isChosen = !selected.has(id);
  for (const name of touched) isChosen ? changed.add(name) : changed.delete(name);
  return changed;
}

export const archivePath = (ids) => `v1/jobs/archive?${new URLSearchParams(ids.map((id) => ["id", id]))}`;

// Delete jobs, some at a time; return { done, failed: [{ id, message }] }.
export async function deleteJobs(ids) {
  const outcome = { done: new Set(), failed: [] };
  const left = [...ids];
  const work = async () => {
    for (let id = left.pop(); id; id = left.pop()) {
      try {
        await request("DELETE", `v1/jobs/${id}`);
        outcome.done.add(id);
      } catch (error) {
        if (error.status === 404) outcome.done.add(id);
        else outcome.failed.push({ id, message: error.message });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return outcome;
}

export function SelectionBar({ selected, onChange, onDeleted }) {
  const [isAsking, setAsking] = useState(false);
  const ids = [...selected];
  const noun = ids.length === 1 ? "job" : "jobs";
  const remove = async () => {
    const { done, failed } = await deleteJobs(ids);
    onDeleted(done);
    if (failed.length) throw new Error(`${failed.length} of ${ids.length} were not deleted: ${told(failed)}`);
  };
  return html`
    <div class="gallery-selection ${ids.length ? "" : "empty"}">
      <span role="status">${ids.length ? `${ids.length} ${noun} selected` : ""}</span>
      ${ids.length > 0 && html`
        ${ids.length <= MOST_IN_ARCHIVE
          ? html`<a class="button" href=${archivePath(ids)} download="diffuserve.zip">Download zip</a>`
          : html`<span class="hint">A zip holds ${MOST_IN_ARCHIVE} jobs at most</span>`}
        <button type="button" class="danger" onClick=${() => setAsking(true)}>Delete…</button>
        <button type="button" class="quiet" onClick=${() => onChange(new Set())}>Clear</button>`}
      <${Confirm} isOpen=${isAsking} title=${`Delete ${ids.length} ${noun}?`} action="Delete"
        onConfirm=${remove} onClose=${() => setAsking(false)}>
        <p>Their files are deleted too. Jobs that are still running are canceled first.</p>
      <//>
    </div>`;
}

const told = (failed) => failed.map(({ id, message }) => `${id}: ${message}`).join("; ");
