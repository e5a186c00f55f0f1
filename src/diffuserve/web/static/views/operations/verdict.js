// The line at the top: is all well?
import { computed, html } from "../../vendor/ui.js";
import { notReadySeconds } from "./history.js";
import { verdictOf } from "./health.js";
import { serverNow, snapshot } from "./live.js";

const SIGNS = { good: "✓", warning: "!", bad: "✕" };

const verdict = computed(() => verdictOf(snapshot.value, serverNow.value, notReadySeconds.value));
// A text that ticks is not announced again: screen readers hear of another level or another finding.
const level = computed(() => verdict.value.level);
const text = computed(() => verdict.value.text);
const notes = computed(() => verdict.value.notes.join(" · "));

export function Verdict() {
  return html`
    <div class="verdict ${level.value}" role="status">
      <span class="sign" aria-hidden="true">${SIGNS[level.value]}</span>
      <p><strong>${text}</strong>${notes.value && html`<br /><span>${notes.value}</span>`}</p>
    </div>
  `;
}
