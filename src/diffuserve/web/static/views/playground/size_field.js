// The size of the image: one that the model has learned, or one's own in steps that it can.
import { html, useState } from "../../vendor/ui.js";
import { isLimited, sizesOf } from "./presets.js";
import { FieldError, NumberField } from "./fields.js";
import { hasControlIn } from "./job_request.js";
import { change, inputs, settings } from "./state.js";

const SIDES = ["width", "height"];
const LONGEST_ICON = 22; // pixels

export function SizeField({ model }) {
  const { width, height } = settings.value;
  const presets = sizesOf(model);
  const { images, controls } = inputs.value;
  const follows = images.length + controls.length > 0 || hasControlIn(inputs.value); // it has the image's size
  const chosen = presetOf(presets, { width, height }, model, follows);
  const [isOpen, open] = useState(false);
  const takesOwn = !isLimited(model);
  const isOwn = takesOwn && (isOpen || (chosen === null && Boolean(width || height)));
  const choose = (size) => {
    open(false);
    change({ width: size?.width ?? null, height: size?.height ?? null });
  };
  return html`
    <fieldset class="field choices">
      <legend>Size</legend>
      <div class="choice-row sizes">
        ${
          follows &&
          html`<${Preset} key="image" name="As image" detail="its own" isChosen=${!isOwn && !width && !height}
          onChoose=${() => choose(null)} />`
        }
        ${presets.map(
          (size) => html`
          <${Preset} key=${`${size.width}x${size.height}`} ...${size} detail=${`${size.width}×${size.height}`}
            isChosen=${!isOwn && size === chosen} onChoose=${() => choose(size)} />`,
        )}
        ${
          takesOwn &&
          html`<${Preset} key="own" name="Custom" detail="W × H" isChosen=${isOwn}
          onChoose=${() => open(true)} />`
        }
      </div>
      ${isOwn && html`<${OwnSize} model=${model} />`}
      ${!isOwn && SIDES.map((name) => html`<${FieldError} key=${name} name=${name} />`)}
    </fieldset>`;
}

function presetOf(presets, { width, height }, { defaults }, follows) {
  if (!width && !height && follows) return null;
  const wanted = { width: width ?? defaults.width, height: height ?? defaults.height };
  return presets.find((size) => size.width === wanted.width && size.height === wanted.height) ?? null;
}

function Preset({ name, detail, width, height, isChosen, onChoose }) {
  return html`
    <label class="choice size">
      <input type="radio" name="setting-size" checked=${isChosen} onChange=${onChoose} />
      <span>${width ? html`<${Shape} width=${width} height=${height} />` : html`<i class="shape free" />`}
        <b>${name}</b><small>${detail}</small></span>
    </label>`;
}

function Shape({ width, height }) {
  const scale = LONGEST_ICON / Math.max(width, height);
  return html`<i class="shape" style=${{ width: `${width * scale}px`, height: `${height * scale}px` }} />`;
}

function OwnSize({ model: { limits, defaults } }) {
  const most = limits.max_pixels.toLocaleString("en");
  const sides = { step: limits.size_multiple, min: limits.min_size, max: limits.max_size };
  return html`
    <div class="pair">
      <${NumberField} name="width" label="Width" standard=${defaults.width} ...${sides} />
      <${NumberField} name="height" label="Height" standard=${defaults.height} ...${sides} />
    </div>
    <p class="hint">Multiples of ${limits.size_multiple}, at most ${most} pixels in all.</p>`;
}
