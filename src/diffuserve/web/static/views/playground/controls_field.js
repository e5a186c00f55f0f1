// ControlNets of the request, each with the image that it follows, how much it counts and in which steps.
import { html } from "../../vendor/ui.js";
import { FieldError } from "./fields.js";
import { Picker, Thumb } from "./image_field.js";
import { MOST_CONTROLS, addControl, firstMode, inputs, numModes, setControls } from "./state.js";

export function ControlsField({ model: { limits } }) {
  const { controls } = inputs.value;
  const replace = (old, changed) => setControls(controls.map((one) => (one === old ? { ...one, ...changed } : one)));
  return html`
    <section class="field image-field" aria-label="Controls">
      <span class="label">Controls<span class="hint">${limits.needs_control_image ? "" : "optional, "}up to ${MOST_CONTROLS}</span></span>
      ${controls.map(
        (control, place) => html`
        <${Control} key=${place} control=${control} number=${place + 1} limits=${limits}
          onChange=${(changed) => replace(control, changed)}
          onRemove=${() => setControls(controls.filter((other) => other !== control))} />`,
      )}
      ${
        controls.length < MOST_CONTROLS &&
        html`
        <div class="thumbs">
          <${Picker} name="controls" hint="Drop or choose edges, depth or a pose" onPick=${addControl} />
        </div>`
      }
      <${FieldError} name="controls" />
      <${FieldError} name="control_image" />
    </section>`;
}

function Control({ control, number, limits, onChange, onRemove }) {
  const choose = ({ target }) => onChange({ name: target.value, mode: firstMode(limits, target.value) });
  return html`
    <fieldset class="control">
      <legend class="hint">Control ${number}</legend>
      <${Thumb} image=${control.image} onRemove=${onRemove} />
      <div class="control-values">
        <label>ControlNet
          <select value=${control.name} onChange=${choose}>
            ${limits.controlnets.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
          </select>
        </label>
        ${control.mode !== null && html`<${Part} name="mode" label="Kind" most=${numModes(limits, control.name) - 1} step="1" ...${{ control, onChange }} />`}
        <${Part} name="weight" label="Weight" most="2" step="0.05" ...${{ control, onChange }} />
        <${Part} name="start" label="From" most="1" step="0.05" ...${{ control, onChange }} />
        <${Part} name="end" label="To" most="1" step="0.05" ...${{ control, onChange }} />
      </div>
    </fieldset>`;
}

function Part({ name, label, most, step, control, onChange }) {
  const read = ({ target }) => target.value !== "" && onChange({ [name]: Number(target.value) });
  return html`
    <label>${label}
      <input type="number" min="0" max=${most} step=${step} value=${control[name] ?? 0} onInput=${read} />
    </label>`;
}
