// In place of a view whose module did not come: a server that was upgraded has those of its own version alone.
import { html } from "../vendor/ui.js";

export default function NotLoaded() {
  return html`
    <h1>This view could not be loaded</h1>
    <p>The server may have been upgraded while the page was open, or be away.</p>
    <button class="primary" onClick=${() => location.reload()}>Load the page again</button>`;
}
