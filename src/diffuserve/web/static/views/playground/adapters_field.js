// Adapters (LoRA) of the request, each with how much of it; up to so many as the model takes.
import { html, useState } from "../../vendor/ui.js";
import { FieldError, faultOf, idOf } from "./fields.js";
import { change, settings } from "./state.js";

const MOST_WEIGHT = 2; // of the slider: the API takes more than is of use

// `known` are names to choose from; others can be written.
export function AdaptersField({ most, known = [] }) {
  const chosen = settings.value.adapters ?? [];
  const choose = (adapters) => change({ adapters: adapters.length ? adapters : null });
  const left = known.filter((name) => !chosen.some((one) => one.name === name));
  return html`
    <section class="field adapters-field" aria-label="Adapters">
      <label class="label" for=${idOf("adapters")}>Adapters<span class="hint">optional, up to ${most}</span></label>
      ${chosen.map(
        (one) => html`
        <${Chosen} key=${one.name} adapter=${one}
          onWeigh=${(weight) => choose(chosen.map((other) => (other === one ? { ...one, weight } : other)))}
          onRemove=${() => choose(chosen.filter((other) => other !== one))} />`,
      )}
      ${
        chosen.length < most &&
        html`<${Adder} names=${left} onAdd=${(name) => choose(withName(chosen, name))} />`
      }
      <${FieldError} name="adapters" />
    </section>`;
}

const withName = (chosen, name) =>
  chosen.some((one) => one.name === name) ? chosen : [...chosen, { name, weight: 1 }];

function Chosen({ adapter: { name, weight }, onWeigh, onRemove }) {
  return html`
    <div class="adapter">
      <span class="adapter-name">${name}</span>
      <input type="range" min="0" step="0.05" max=${Math.max(MOST_WEIGHT, weight)} value=${weight}
        aria-label=${`Weight of ${name}`} onInput=${({ target }) => onWeigh(Number(target.value))} />
      <output>${weight}</output>
      <button type="button" class="icon" onClick=${onRemove} title="Remove"
        aria-label=${`Remove ${name}`}>×</button>
    </div>`;
}

function Adder({ names, onAdd }) {
  const [name, write] = useState("");
  const add = () => {
    if (name.trim()) onAdd(name.trim());
    write("");
  };
  const press = (event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    add();
  };
  return html`
    <div class="with-buttons">
      <input id=${idOf("adapters")} list="adapter-names" autocomplete="off" placeholder="Name of an adapter"
        value=${name} onInput=${({ target }) => write(target.value)} onKeyDown=${press} ...${faultOf("adapters")} />
      <datalist id="adapter-names">${names.map((one) => html`<option key=${one} value=${one} />`)}</datalist>
      <button type="button" onClick=${add} disabled=${!name.trim()}>Add</button>
    </div>`;
}
