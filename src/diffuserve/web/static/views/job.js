import { html } from "../vendor/ui.js";

export default function Job() {
  return html`<h1>Job</h1>`;
}
