import { html } from "../vendor/ui.js";

export default function Playground() {
  return html`<h1>Playground</h1>`;
}
