// Jobs as POST /v1/jobs takes them, from settings; and settings from a job.
import { NO_SETTINGS } from "./query.js";

export const VIDEO = "video.generate";
export const IMAGE = "image.generate";
export const AUDIO = "audio.generate";
// Formats of files, the default first.
export const FORMATS = {
  [IMAGE]: ["png", "webp", "jpeg"],
  [VIDEO]: ["mp4", "webm", "gif", "webp"],
  [AUDIO]: ["wav", "flac"],
};
const MOST_SEED = 2 ** 32; // beyond 2 ** 53 a script cannot count

export const randomSeed = () => Math.floor(Math.random() * MOST_SEED);

// Return the kind of job that settings ask for: clips, where the model's own length is one, or sounds.
export function kindOf(settings, model) {
  if (model.limits.max_seconds > 0) return AUDIO;
  if (model.limits.max_frames <= 1) return IMAGE;
  return settings.kind ?? (model.defaults.num_frames > 1 ? VIDEO : IMAGE);
}

// Return the fields with a control that mean something to a model: in a job of this kind, that brings such
// inputs along.
export function fieldsOf(model, kind, { brings = {}, sampler = null } = {}) {
  const has = { image: true, mask: true, control: true, image_prompt: true, ...brings, clip: kind === VIDEO };
  const named = sampler ?? model.defaults.sampler;
  return controlled(model).filter(
    ({ name, topic, samplers }) =>
      (topic === null || has[topic]) &&
      (!samplers.length || samplers.includes(named)) &&
      (name !== "seconds" || kind === AUDIO), // of clips the form asks for frames
  );
}

// Return the fields of a model that have a control, but for those of images.
export const controlled = (model) =>
  model.fields.filter(({ label, kind }) => label !== null && kind !== "image");

// Return the fields of a model, in a job of this kind, that are one image each with an upload of its own.
export const picturesOf = (model, kind) =>
  model.fields.filter(
    (field) =>
      field.label !== null &&
      field.kind === "image" &&
      (field.topic !== "clip" || kind === VIDEO) &&
      (field.topic !== "control" || !hasControlNets(model)), // they have their own images
  );

export const hasControlNets = ({ limits }) => (limits.controlnets ?? []).length > 0;

// Return the body of POST /v1/jobs. `inputs` are uploaded files: { images, mask, named, prompts, controls }.
export function jobRequest(settings, model, inputs) {
  const kind = kindOf(settings, model);
  const { sampler } = settings;
  const image = inputs.images.length > 0;
  const brings = { image, mask: image && Boolean(inputs.mask), control: hasControlIn(inputs), image_prompt: inputs.prompts.length > 0 };
  const fields = fieldsOf(model, kind, { brings, sampler });
  const said = fields.map(({ name }) => [name, settings[name] ?? ""]).filter(([, value]) => value !== "");
  const input = Object.fromEntries(said);
  return {
    model: model.id,
    ...(kind === IMAGE ? {} : { kind }),
    input: { ...input, ...stillFrames(kind, model), ...imagesOf(inputs), ...namedOf(inputs, model, kind), ...guidesOf(inputs) },
    ...(settings.priority ? { priority: settings.priority } : {}),
    ...(settings.output_format ? { output_format: settings.output_format } : {}),
    ...(settings.expand_prompt ? { expand_prompt: true } : {}),
    ...(kind === VIDEO && settings.live !== false ? { live: true } : {}),
    num_previews: kind === AUDIO ? 0 : numPreviews(settings, model),
  };
}

// A model whose default is a clip draws an image when it is told so.
const stillFrames = (kind, model) =>
  kind === IMAGE && model.defaults.num_frames > 1 ? { num_frames: 1 } : {};

function imagesOf({ images, mask }) {
  if (!images.length) return {};
  const ids = images.map((image) => image.id);
  return { image: ids.length === 1 ? ids[0] : ids, ...(mask ? { mask: mask.id } : {}) };
}

function guidesOf({ prompts, controls }) {
  const uses = controls.map(({ image, mode, ...use }) => ({
    ...use,
    image: image.id,
    ...(mode === null ? {} : { mode }),
  }));
  return {
    ...(prompts.length ? { image_prompts: prompts.map(({ id }) => id) } : {}),
    ...(uses.length ? { controls: uses } : {}),
  };
}

export const hasControlIn = ({ named }) => Boolean(named.control_image);

const namedOf = ({ named }, model, kind) =>
  Object.fromEntries(
    picturesOf(model, kind).flatMap(({ name }) => (named[name] ? [[name, named[name].id]] : [])),
  );

// A preview after each step but the last, within the API's bound.
function numPreviews(settings, model) {
  const steps = settings.num_inference_steps ?? model.defaults.num_inference_steps;
  return Math.max(0, Math.min(model.limits.max_previews, steps - 1));
}

// Return the settings with which the form asks for the same job again.
export function settingsOfJob(job, model) {
  const input = { ...job.input, prompt: job.prompt?.original ?? job.input.prompt };
  const own = model ? fieldsOf(model, job.kind, { sampler: input.sampler }) : plain(input);
  const isKept = ({ name, default: ownValue }) =>
    input[name] !== undefined && (input[name] !== ownValue || name === "seed");
  return {
    ...NO_SETTINGS,
    ...Object.fromEntries(own.map((field) => [field.name, isKept(field) ? input[field.name] : null])),
    adapters: input.adapters?.map(({ name, weight }) => ({ name, weight })) ?? null,
    num_images: input.num_images > 1 ? input.num_images : null,
    model: job.model,
    kind: job.kind === VIDEO || model?.defaults.num_frames > 1 ? job.kind : null,
    expand_prompt: job.prompt?.expansion ? true : null,
    output_format: formatOf(job),
  };
}

// Return what an input says in numbers and words, for a model that is not known any more.
const plain = (input) =>
  Object.keys(input)
    .filter((name) => typeof input[name] !== "object")
    .map((name) => ({ name }));

// Return the format of a finished job's files, null for the default of its kind.
export function formatOf(job) {
  const output = job.result?.artifacts.find(({ role }) => ["video", "image", "audio"].includes(role));
  const format = output?.name.split(".").pop() ?? null;
  return format === FORMATS[job.kind]?.[0] ? null : format;
}

// Return the file ids of a job's images: { images: [id], mask: id | null, named: { field: id }, prompts: [id],
// controls: [{ name, image: id, … }] }. A control image is what the first ControlNet follows, if there are any.
export function filesOfJob(job, model = null) {
  const { image, mask, image_prompts: prompts, controls = [], ...others } = job.input;
  const uses = controls.map((use) => ({ ...use, image: use.image.id }));
  if (model && hasControlNets(model) && others.control_image) {
    const weight = others.control_scale ?? model.defaults.control_scale ?? 1;
    uses.push({ name: model.limits.controlnets[0], image: others.control_image.id, weight, start: 0, end: 1 });
    delete others.control_image;
  }
  const named = Object.entries(others).filter(([, value]) => value?.id);
  return {
    images: (image ? [image].flat() : []).map(({ id }) => id),
    mask: mask?.id ?? null,
    named: Object.fromEntries(named.map(([name, { id }]) => [name, id])),
    prompts: (prompts ? [prompts].flat() : []).map(({ id }) => id),
    controls: uses,
  };
}
