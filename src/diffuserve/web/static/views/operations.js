import { html } from "../vendor/ui.js";

export default function Operations() {
  return html`<h1>Operations</h1>`;
}
