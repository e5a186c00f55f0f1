// The view of a path that is none.
import { html } from "../vendor/ui.js";

export default function NotFound() {
  return html`
    <h1>There is nothing here</h1>
    <p>The address may be mistyped, or what it showed was deleted. Go to the
    ${" "}<a data-view href=".">playground</a> or to the <a data-view href="gallery">gallery</a>.</p>`;
}
