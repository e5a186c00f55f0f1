// The button, and what no single field has caused.
import { html, useEffect, useState } from "../../vendor/ui.js";
import { Estimate } from "./estimate.js";
import { model, refusal } from "./state.js";

const KEYS = navigator.platform?.startsWith("Mac") ? "⌘ Enter" : "Ctrl Enter";

export function SubmitRow({ isBusy }) {
  const isReady = model.value !== null;
  return html`
    <div class="submit-row">
      <${Estimate} />
      <button class="primary" type="submit" disabled=${isBusy || !isReady}>
        ${isBusy ? "Submitting…" : "Generate"}<kbd aria-hidden="true">${KEYS}</kbd>
      </button>
      <${Refusal} />
    </div>`;
}

function Refusal() {
  const told = refusal.value;
  if (!told || (!told.summary && told.seconds === null)) return null;
  return html`
    <div class="refusal" role="alert">
      ${told.summary && html`<p>${told.summary}</p>`}
      ${told.seconds !== null && html`<${Countdown} key=${told.at} seconds=${told.seconds} />`}
    </div>`;
}

// Count down what Retry-After said.
function Countdown({ seconds }) {
  const [left, setLeft] = useState(Math.ceil(seconds));
  useEffect(() => {
    const timer = setInterval(() => setLeft((before) => Math.max(0, before - 1)), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<p class="countdown"
    aria-live="off">${left > 0 ? `Try again in ${left} s.` : "Try again now."}</p>`;
}
