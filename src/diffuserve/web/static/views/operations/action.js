// A button that asks the server for something: it is busy meanwhile, and shows a refusal beside itself.
import { html, useSignal } from "../../vendor/ui.js";

// `act` returns a promise. `done` replaces the button for good; without it the button stays.
export function Action({ label, title, done, act }) {
  const state = useSignal("idle");
  const problem = useSignal("");
  const start = async () => {
    state.value = "busy";
    problem.value = "";
    try {
      await act();
      state.value = done ? "done" : "idle";
    } catch (error) {
      problem.value = error.message;
      state.value = "idle";
    }
  };
  if (state.value === "done") return html`<span class="quiet" role="status">${done}</span>`;
  return html`
    <span class="action">
      <button class="small" disabled=${state.value === "busy"} aria-label=${title} onClick=${start}>${label}</button>
      ${problem.value && html`<span class="problem" role="alert">${problem.value}</span>`}
    </span>
  `;
}
