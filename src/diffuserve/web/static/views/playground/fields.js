// Controls of the form. Each has a label, the model's default as placeholder, and its error beside it.
import { html } from "../../vendor/ui.js";
import { change, refusal, settings } from "./state.js";

const errorOf = (name) => refusal.value?.fields[name] ?? null;
export const idOf = (name) => `setting-${name}`;

// Return the attributes that tie a control to its error.
export const faultOf = (name) =>
  errorOf(name) ? { "aria-invalid": "true", "aria-describedby": `${idOf(name)}-error` } : {};

export function FieldError({ name }) {
  const message = errorOf(name);
  return message && html`<p class="field-error" role="alert" id=${`${idOf(name)}-error`}>${message}</p>`;
}

export function Field({ name, label, hint, children }) {
  return html`
    <div class="field">
      <label for=${idOf(name)}>${label}${hint && html`<span class="hint">${hint}</span>`}</label>
      ${children}
      <${FieldError} name=${name} />
    </div>`;
}

// A number; empty means the model's default. The server says what is wrong with one that it does not take.
export function NumberField({ name, label, hint, step = 1, min, max, standard }) {
  const given = settings.value[name];
  const read = ({ target }) => change({ [name]: target.value === "" ? null : Number(target.value) });
  return html`
    <${Field} name=${name} label=${label} hint=${hint}>
      <input id=${idOf(name)} type="number" inputmode=${step < 1 ? "decimal" : "numeric"}
        ...${{ step, min, max }}
        placeholder=${standard ?? ""} value=${given ?? ""} onInput=${read} ...${faultOf(name)} />
    <//>`;
}

export function TextField({ name, label, hint }) {
  const read = ({ target }) => change({ [name]: target.value || null });
  return html`
    <${Field} name=${name} label=${label} hint=${hint}>
      <input id=${idOf(name)} value=${settings.value[name] ?? ""} onInput=${read} ...${faultOf(name)} />
    <//>`;
}

// The control of a field that the form knows nothing else of.
export function DeclaredField({ field }) {
  const { name, kind, label, hint, choices, min, max, step, default: standard } = field;
  const told = { name, label, hint };
  if (kind === "text") return html`<${TextField} ...${told} />`;
  if (kind === "choice") {
    const options = ["", ...choices].map((value) => [value, value || `${standard} (default)`]);
    return html`<${SelectField} ...${told} options=${options} />`;
  }
  return html`<${NumberField} ...${told} ...${{ min, max, standard }} step=${step ?? undefined} />`;
}

export function RangeField({ name, label, min, max, step, standard }) {
  const value = settings.value[name] ?? standard;
  const read = ({ target }) => change({ [name]: Number(target.value) });
  return html`
    <${Field} name=${name} label=${label} hint=${String(value)}>
      <input id=${idOf(name)} type="range" ...${{ min, max, step, value }} onInput=${read}
        ...${faultOf(name)} />
    <//>`;
}

// `options` are [value, text]; the value "" stands for the default.
export function SelectField({ name, label, hint, options, value, onChoose }) {
  const choose = ({ target }) => (onChoose ?? ((value) => change({ [name]: value || null })))(target.value);
  return html`
    <${Field} name=${name} label=${label} hint=${hint}>
      <select id=${idOf(name)} value=${value ?? settings.value[name] ?? ""} onChange=${choose}
        ...${faultOf(name)}>
        ${options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    <//>`;
}

export function CheckField({ name, label, standard = false }) {
  const isOn = settings.value[name] ?? standard;
  const read = ({ target }) => change({ [name]: target.checked === standard ? null : target.checked });
  return html`
    <div class="field">
      <label class="check">
        <input id=${idOf(name)} type="checkbox" checked=${isOn} onChange=${read}
          ...${faultOf(name)} />${label}
      </label>
      <${FieldError} name=${name} />
    </div>`;
}

// A few choices as buttons of which one is chosen: `options` are [value, text].
export function ChoiceField({ name, label, options, value, onChoose }) {
  const choose = onChoose ?? ((chosen) => change({ [name]: chosen }));
  return html`
    <fieldset class="field choices">
      <legend>${label}</legend>
      <div class="choice-row">
        ${options.map(
          ([option, text]) => html`
          <label key=${option} class="choice">
            <input type="radio" name=${idOf(name)} checked=${option === value}
              onChange=${() => choose(option)} />
            <span>${text}</span>
          </label>`,
        )}
      </div>
      <${FieldError} name=${name} />
    </fieldset>`;
}
