// The model, and whether it runs jobs now.
import { html } from "../../vendor/ui.js";
import { isOperator } from "../../session.js";
import { SelectField } from "./fields.js";
import { ModelsMenu } from "./models_dialog.js";
import { chooseModel, model, models, server } from "./state.js";

const STATES = { ready: "ready", loading: "loading", unavailable: "not available" };

export function ModelField() {
  const known = models.value;
  if (known === null) return html`<div class="field skeleton" aria-hidden="true" />`;
  const options = known.map((one) => [
    one.id,
    one.status === "ready" ? one.id : `${one.id} (${STATES[one.status]})`,
  ]);
  const status = model.value?.status ?? "unavailable";
  return html`
    <div class="model-field">
      ${
        known.length > 0 &&
        html`
        <${SelectField} name="model" label="Model" options=${options} value=${model.value.id}
          onChoose=${chooseModel} />`
      }
      <p class="status ${status}" role="status"><i class="dot" /><span>${withCode(toldOf(status))}</span></p>
      ${isOperator.value && html`<${ModelsMenu} />`}
    </div>`;
}

// Commands stand between backticks.
const withCode = (text) =>
  text.split("`").map((part, place) => (place % 2 ? html`<code key=${place}>${part}</code>` : part));

function toldOf(status) {
  const reason = server.value?.reason;
  if (status === "ready") return "Ready";
  if (status === "loading")
    return reason ? `Loading: ${reason}` : "The model is being loaded. Jobs wait until it is there.";
  return reason ? `No images yet: ${reason}` : "No worker serves this model now. Jobs wait until one does.";
}
