// A share as a small bar: of memory, of steps, of device time. Without a `label` what surrounds it says it.
import { html } from "../../vendor/ui.js";

export function Meter({ share, label, text, tone = "accent" }) {
  const width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return html`
    <span class="meter ${tone}" role=${label && "img"} aria-label=${label} aria-hidden=${label ? null : "true"}>
      <span class="track"><span class="fill" style=${{ width }}></span></span>
      ${text && html`<span class="meter-text" aria-hidden="true">${text}</span>`}
    </span>
  `;
}
