// The form: what to draw, with which model, and how.
import { html, useEffect, useRef } from "../../vendor/ui.js";
import {
  CheckField,
  ChoiceField,
  DeclaredField,
  Field,
  NumberField,
  RangeField,
  SelectField,
  faultOf,
  idOf,
} from "./fields.js";
import { AdaptersField } from "./adapters_field.js";
import { ControlsField } from "./controls_field.js";
import { ImageField, ImagePromptsField, PictureField, imagesIn } from "./image_field.js";
import {
  AUDIO,
  FORMATS,
  IMAGE,
  VIDEO,
  controlled,
  fieldsOf,
  hasControlIn,
  hasControlNets,
  picturesOf,
  randomSeed,
} from "./job_request.js";
import { ModelField } from "./model_field.js";
import { lengthsOf } from "./presets.js";
import { SizeField } from "./size_field.js";
import { SubmitRow } from "./submit_row.js";
import { addImage, change, inputs, kind, model, plan, refusal, server, settings } from "./state.js";

// Fields with a place of their own in the form.
const ELSEWHERE = [
  ...["prompt", "lyrics", "width", "height", "seconds"],
  ...["seed", "num_images", "num_frames", "fps", "strength", "adapters", "image_prompt_scale"],
];
const isAmongMore = ({ name }) => !ELSEWHERE.includes(name);
const PLACEHOLDERS = {
  [IMAGE]: "Describe the image that you want to see",
  [VIDEO]: "Describe the clip that you want to see",
  [AUDIO]: "Describe the sound that you want to hear",
};
const COUNTED = { [IMAGE]: "Images", [VIDEO]: "Clips", [AUDIO]: "Sounds" };

export function Form({ onSubmit, isBusy }) {
  const chosen = model.value;
  const submit = (event) => {
    event.preventDefault();
    if (!isBusy) onSubmit();
  };
  const paste = (event) => {
    const files = chosen?.limits.max_input_images ? imagesIn(event.clipboardData) : [];
    if (files.length) event.preventDefault();
    files.forEach(addImage);
  };
  return html`
    <form class="playground-form" aria-label="New image" onSubmit=${submit} onPaste=${paste} noValidate>
      <div class="playground-fields">
        <${Prompt} model=${chosen} onSubmit=${submit} />
        <${ModelField} />
        ${chosen && html`<${Choices} key=${chosen.id} model=${chosen} />`}
      </div>
      <${SubmitRow} isBusy=${isBusy} />
    </form>`;
}

function Prompt({ model: chosen, onSubmit }) {
  const area = useRef(null);
  const { prompt } = settings.value;
  const [example, ...others] = chosen?.example_prompts ?? [];
  useEffect(() => area.current.focus({ preventScroll: true }), []);
  useEffect(() => fit(area.current), [prompt]);
  const read = ({ target }) => change({ prompt: target.value });
  const press = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && onSubmit(event);
  return html`
    <${Field} name="prompt" label="Prompt">
      <textarea id=${idOf("prompt")} ref=${area} rows="2" placeholder=${example ?? PLACEHOLDERS[kind.value ?? IMAGE]}
        maxlength=${chosen?.limits.max_prompt_characters} value=${prompt ?? ""} onInput=${read}
          onKeyDown=${press}
        ...${faultOf("prompt")} />
    <//>
    ${
      example &&
      !prompt &&
      html`
      <${Example} text=${example} label=${`Try “${example}”`} />
      ${
        others.length > 0 &&
        html`
        <details class="more-examples">
          <summary>More prompts to try</summary>
          ${others.map((text) => html`<${Example} key=${text} text=${text} label=${text} />`)}
        </details>`
      }`
    }`;
}

const Example = ({ text, label }) => html`
  <button type="button" class="example" onClick=${() => change({ prompt: text })}>${label}</button>`;

function fit(area) {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, 320)}px`;
}

function Choices({ model: chosen }) {
  const { limits } = chosen;
  const { sampler } = settings.value;
  const hasControl = hasControlIn(inputs.value);
  const more = fieldsOf(chosen, kind.value, { brings: { control: hasControl }, sampler }).filter(isAmongMore);
  const isClip = kind.value === VIDEO;
  return html`
    ${
      limits.max_frames > 1 &&
      html`
      <${ChoiceField} name="kind" label="Make" options=${[
        [IMAGE, "An image"],
        [VIDEO, "A clip"],
      ]} value=${kind.value} onChoose=${(made) => change({ kind: made, output_format: null })} />`
    }
    ${kind.value === AUDIO ? html`<${SoundFields} model=${chosen} />` : html`<${SizeField} model=${chosen} />`}
    ${isClip && html`<${ClipFields} model=${chosen} />`}
    ${limits.max_input_images > 0 && html`<${ImageField} model=${chosen} />`}
    ${picturesOf(chosen, kind.value).map(
      (field) => html`<${PictureField} key=${field.name} field=${field} isNeeded=${limits[`needs_${field.name}`]} />`,
    )}
    ${hasControlNets(chosen) && html`<${ControlsField} model=${chosen} />`}
    ${limits.max_image_prompts > 0 && html`<${ImagePromptsField} model=${chosen} />`}
    ${limits.max_adapters > 0 && html`<${AdaptersField} most=${limits.max_adapters} known=${chosen.adapters} />`}
    <div class="pair count-and-seed">
      <${NumberField} name="num_images" label=${COUNTED[kind.value]}
        hint=${`1 to ${limits.max_images}`} min="1"
        max=${limits.max_images} standard="1" />
      <${SeedField} limits=${limits} />
    </div>
    <details class="more" open=${hasMore(chosen)}>
      <summary>More settings</summary>
      ${more.map(
        (field) => html`
        <${CONTROLS[field.name] ?? DeclaredField} key=${field.name} field=${field} model=${chosen} />`,
      )}
      <${SelectField} name="output_format" label="Format" options=${formats(kind.value)} />
      ${
        plan.value?.priorities.length > 1 &&
        html`
        <${SelectField} name="priority" label="Priority" options=${priorities(plan.value)} />`
      }
      ${
        server.value?.expands_prompts &&
        html`
        <${CheckField} name="expand_prompt" label="Expand the prompt with a language model" />`
      }
      ${
        isClip &&
        html`
        <${CheckField} name="live" label="Play the clip while it is drawn" standard=${true} />`
      }
    </details>`;
}

// Open where one of the settings in it is not the default.
const hasMore = (chosen) => {
  const names = controlled(chosen).filter(isAmongMore).map(({ name }) => name);
  return [...names, "priority", "expand_prompt", "output_format"].some(
    (name) => (settings.value[name] ?? null) !== null || refusal.value?.fields[name],
  );
};

function StepsField({ model: chosen }) {
  const standard = chosen.defaults.num_inference_steps;
  const allowed = (chosen.tiers?.steps ?? []).map((steps) => [steps, String(steps)]);
  return allowed.length
    ? html`
      <${ChoiceField} name="num_inference_steps" label="Steps" options=${allowed}
        value=${settings.value.num_inference_steps ?? standard} />`
    : html`
      <${RangeField} name="num_inference_steps" label="Steps" min="1" step="1" max=${mostSteps(chosen)}
        standard=${standard} />`;
}

// A range that is useful: the bound of the API is far beyond what most models gain from.
const mostSteps = ({ defaults, limits }) =>
  Math.min(limits.max_num_inference_steps, Math.max(50, 2 * defaults.num_inference_steps));

const samplers = ({ limits, defaults }) => [
  ["", defaults.sampler ? `${defaults.sampler} (the model's own)` : "the model's own"],
  ...limits.samplers.filter((name) => name !== defaults.sampler).map((name) => [name, name]),
];

const formats = (made) =>
  FORMATS[made].map((name, place) => (place ? [name, name] : ["", `${name} (default)`]));

const priorities = ({ priorities: allowed, default_band: standard }) => [
  ["", `${standard} (default)`],
  ...allowed.filter((name) => name !== standard).map((name) => [name, name]),
];

const SamplerField = ({ model: chosen }) =>
  html`<${SelectField} name="sampler" label="Sampler" options=${samplers(chosen)} />`;

const CONTROLS = { num_inference_steps: StepsField, sampler: SamplerField };

function SeedField({ limits }) {
  const seed = settings.value.seed ?? null;
  const read = ({ target }) => change({ seed: target.value === "" ? null : Number(target.value) });
  return html`
    <${Field} name="seed" label="Seed" hint=${seed === null ? "random" : "fixed"}>
      <div class="with-buttons">
        <input id=${idOf("seed")} type="number" inputmode="numeric" min="0" max=${limits.max_seed}
          placeholder="random"
          value=${seed ?? ""} onInput=${read} ...${faultOf("seed")} />
        <button type="button" class="icon" onClick=${() => change({ seed: randomSeed() })} title="Draw a seed"
          aria-label="Draw a seed">⚄</button>
        ${
          seed !== null &&
          html`<button type="button" class="icon" onClick=${() => change({ seed: null })}
          title="A new seed each time" aria-label="A new seed each time">×</button>`
        }
      </div>
    <//>`;
}

function SoundFields({ model: { limits, defaults } }) {
  const read = ({ target }) => change({ lyrics: target.value || null });
  return html`
    ${
      limits.has_lyrics &&
      html`
      <${Field} name="lyrics" label="Lyrics" hint="what is sung">
        <textarea id=${idOf("lyrics")} rows="3" value=${settings.value.lyrics ?? ""} onInput=${read}
          ...${faultOf("lyrics")} />
      <//>`
    }
    <${NumberField} name="seconds" label="Seconds" hint=${`up to ${limits.max_seconds}`} step=${0.1} min="0.1"
      max=${limits.max_seconds} standard=${defaults.seconds} />`;
}

function ClipFields({ model: chosen }) {
  const { limits, defaults } = chosen;
  const fps = settings.value.fps ?? defaults.fps;
  const frames = settings.value.num_frames ?? defaults.num_frames;
  const lengths = lengthsOf(chosen, fps).map(({ num_frames, seconds }) => [
    num_frames,
    `${Number(seconds.toFixed(1))} s`,
  ]);
  return html`
    <${ChoiceField} name="num_frames"
      label=${`Length: ${frames} frames, ${Number((frames / fps).toFixed(2))} s`}
      options=${lengths} value=${frames} />
    <${NumberField} name="fps" label="Frames a second" hint=${`1 to ${limits.max_fps}`} min="1"
      max=${limits.max_fps}
      standard=${defaults.fps} />`;
}
