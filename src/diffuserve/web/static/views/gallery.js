import { html } from "../vendor/ui.js";

export default function Gallery() {
  return html`<h1>Gallery</h1>`;
}
