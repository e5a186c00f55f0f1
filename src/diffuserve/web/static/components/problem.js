// Problem({ error, id }): what went wrong, announced as it appears. `error` is an ApiError, any Error, a text or
// null. Beside a field: `fieldProblem(error, "input.width")` returns the text for that field or null, and the
// control gets aria-invalid and aria-describedby=${id}.
import { capitalized } from "../sentence.js";
import { html } from "../vendor/ui.js";

export function Problem({ error, id = null }) {
  if (!error) return null;
  return html`<p class="problem" role="alert" id=${id}>${capitalized(error.message ?? String(error))}</p>`;
}

export function fieldProblem(error, name) {
  const found = error?.problem?.errors?.find(({ field }) => field === name);
  return found ? capitalized(found.message) : null;
}
