// Input images: dropped, pasted or picked; where the model takes one, a mask that is painted or uploaded.
import { html, useState } from "../../vendor/ui.js";
import { FieldError, RangeField, faultOf, idOf } from "./fields.js";
import { MaskEditor } from "./mask_editor.js";
import { isPicture } from "./photo.js";
import { addImage, addPrompt, inputs, removeImage, setMask, setNamed, setPrompts } from "./state.js";

const PICTURES = "image/*"; // a phone offers its photos and its camera
const ONE = "Drop, paste or choose an image";
const ANOTHER = "Another image";

export const imagesIn = (transfer) =>
  [...(transfer?.files ?? [])].filter(isPicture);

export function ImageField({ model: { limits, defaults } }) {
  const { images, mask } = inputs.value;
  const label = limits.has_first_frame
    ? "First frame"
    : limits.has_strength
      ? "Start from an image"
      : "Reference images";
  const takesMore = images.length < limits.max_input_images || limits.max_input_images === 1;
  const isNeeded = images.length < limits.min_input_images;
  return html`
    <section class="field image-field" aria-label=${label}>
      <span class="label">${label}${!isNeeded && html`<span class="hint">optional</span>`}</span>
      <div class="thumbs">
        ${images.map((image, place) => {
          const remove = () => removeImage(place);
          return html`<${Thumb} key=${image.id} image=${image} onRemove=${remove} />`;
        })}
        ${takesMore && html`<${Picker} name="image" hint=${images.length ? ANOTHER : ONE} onPick=${addImage} />`}
      </div>
      <${FieldError} name="image" />
      ${images.length > 0 && limits.has_mask && html`<${MaskField} image=${images[0]} mask=${mask} />`}
      ${
        images.length > 0 &&
        (limits.has_strength || (limits.masks_references && mask)) &&
        html`
        <${RangeField} name="strength" label="Strength: how much may change" min="0.05" max="1" step="0.05"
          standard=${mask ? defaults.mask_strength : defaults.strength} />`
      }
    </section>`;
}

// The image of a field that has one of its own.
export function PictureField({ field: { name, label, hint }, isNeeded }) {
  const image = inputs.value.named[name];
  return html`
    <section class="field image-field" aria-label=${label}>
      <span class="label">${label}<span class="hint">${isNeeded ? hint : `optional${hint ? `: ${hint}` : ""}`}</span></span>
      <div class="thumbs">
        ${image && html`<${Thumb} image=${image} onRemove=${() => setNamed(name, null)} />`}
        <${Picker} name=${name} hint=${image ? ANOTHER : "Drop or choose an image"}
          onPick=${(file) => setNamed(name, file)} />
      </div>
      <${FieldError} name=${name} />
    </section>`;
}

// Images that say what is drawn, beside the prompt, and how much they count.
export function ImagePromptsField({ model: { limits } }) {
  const { prompts } = inputs.value;
  return html`
    <section class="field image-field" aria-label="Image prompts">
      <span class="label">Image prompts<span class="hint">optional: what is drawn, beside the words</span></span>
      <div class="thumbs">
        ${prompts.map((image) => {
          const remove = () => setPrompts(prompts.filter((other) => other !== image));
          return html`<${Thumb} key=${image.id} image=${image} onRemove=${remove} />`;
        })}
        ${
          prompts.length < limits.max_image_prompts &&
          html`<${Picker} name="image_prompts" hint=${prompts.length ? ANOTHER : "Drop or choose an image"}
            onPick=${addPrompt} />`
        }
      </div>
      <${FieldError} name="image_prompts" />
      ${
        prompts.length > 0 &&
        html`<${RangeField} name="image_prompt_scale" label="How much they count" min="0" max="2" step="0.05"
          standard=${1} />`
      }
    </section>`;
}

export function Picker({ name, hint, onPick }) {
  const [isOver, setOver] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const take = async (files) => {
    setBusy(true);
    for (const file of files) await onPick(file);
    setBusy(false);
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    take(imagesIn(event.dataTransfer));
  };
  const over = (event) => {
    event.preventDefault();
    setOver(true);
  };
  const pick = ({ target }) => {
    take([...target.files]);
    target.value = "";
  };
  return html`
    <label class="drop ${isOver ? "over" : ""}" onDragOver=${over} onDragLeave=${() => setOver(false)}
      onDrop=${drop}>
      <input id=${idOf(name)} class="hidden-input" type="file" accept=${PICTURES} multiple=${name === "image"}
        onChange=${pick} ...${faultOf(name)} />
      <span aria-live="polite">${isBusy ? "Uploading…" : hint}</span>
    </label>`;
}

export function Thumb({ image, onRemove }) {
  return html`
    <figure class="thumb">
      <img src=${image.url} alt=${`Input image: ${image.name}`} />
      <button type="button" onClick=${onRemove} aria-label="Remove the image" title="Remove">×</button>
    </figure>`;
}

function MaskField({ image, mask }) {
  const [isPainting, paint] = useState(false);
  const done = async (painted) => {
    paint(false);
    if (!painted) return;
    await setMask(new File([painted.blob], "mask.png", { type: "image/png" }), painted.strokes);
  };
  return html`
    ${isPainting && html`<${MaskEditor} image=${image} strokes=${mask?.strokes} onDone=${done} />`}
    <div class="mask-row">
      ${mask && html`<img class="mask" src=${mask.url} alt="Mask: white is filled in" />`}
      <button type="button" onClick=${() => paint(true)}>${mask?.strokes ? "Change the mask" : "Paint a mask"}</button>
      <label class="as-button">
        <input class="hidden-input" type="file" accept=${PICTURES} aria-label="Upload a mask"
          onChange=${({ target }) => target.files[0] && setMask(target.files[0])} />
        <span>Upload a mask</span>
      </label>
      ${mask && html`<button type="button" onClick=${() => setMask(null)}>No mask</button>`}
    </div>
    <p class="hint">Only what is white in the mask changes.</p>
    <${FieldError} name="mask" />`;
}
