// What concerns every view: the server is away, or something failed that no view has shown.
import { html } from "../vendor/ui.js";
import { isAway } from "../connection.js";
import { notice } from "../notices.js";

export function Banners() {
  return html`
    <div role="status">
      ${isAway.value && html`<p class="banner">The server is away. What you have written stays; trying again…</p>`}
    </div>
    <div role="alert">
      ${notice.value && html`
        <p class="banner bad">
          <span>${notice.value}</span>
          <button type="button" class="small" onClick=${() => (notice.value = null)}>Close</button>
        </p>`}
    </div>`;
}
