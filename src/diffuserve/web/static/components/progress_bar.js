// ProgressBar({ label, fraction, text }): `fraction` is 0…1, null while it is not known; `text` such as
// "12 of 28 steps" stands beside the bar and is what a screen reader says.
import { html } from "../vendor/ui.js";

export function ProgressBar({ label, fraction = null, text = null }) {
  return html`
    <div class="progress-bar">
      <progress aria-label=${label} aria-valuetext=${text} max="1" value=${fraction ?? undefined}></progress>
      ${text && html`<span aria-hidden="true">${text}</span>`}
    </div>`;
}
