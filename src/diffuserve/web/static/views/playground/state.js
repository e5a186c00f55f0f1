// What the form shows: the models and the plan as the server tells them, and what the user has chosen.
import { batch, computed, signal } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { urlOf } from "../../router.js";
import { controlled, kindOf, settingsOfJob, filesOfJob } from "./job_request.js";
import { NO_SETTINGS, queryOf, settingsFrom } from "./query.js";
import { sendable } from "./photo.js";
import { refusalOf } from "./refusals.js";

const KEPT = "diffuserve.playground"; // settings in the browser's storage
const FOR_ANY_MODEL = ["prompt", "seed", "priority", "expand_prompt"];

export const models = signal(null); // null until they are known
export const plan = signal(null);
export const server = signal(null); // GET /: { reason, expands_prompts, requires_key, default_model, … }
export const settings = signal(NO_SETTINGS);
// `named` has images of other fields, `prompts` image prompts; `controls` are those of the request, each with
// its image.
export const NO_INPUTS = { images: [], mask: null, named: {}, prompts: [], controls: [] };
export const MOST_CONTROLS = 3; // of a request
export const inputs = signal(NO_INPUTS); // uploaded files, with a `url` to show them
export const refusal = signal(null); // of the last submission: see refusals.js

let unread = null; // the query whose fields are read once the models tell which there are

// The model that is named, or else that of jobs that name none, if a worker has it.
export const model = computed(() => {
  const known = models.value ?? [];
  const isNamed = (one) => one.id === settings.value.model;
  const isDefault = (one) => one.id === server.value?.default_model && one.status !== "unavailable";
  const isReady = (one) => one.status === "ready";
  return known.find(isNamed) ?? known.find(isDefault) ?? known.find(isReady) ?? known[0] ?? null;
});
const fields = computed(() => (models.value ?? []).flatMap(controlled));
export const kind = computed(() => (model.value ? kindOf(settings.value, model.value) : null));

// Read what the server offers. Raise ApiError.
export async function loadServer() {
  const [root, list, own] = await Promise.all([
    request("GET", ""),
    request("GET", "v1/models"),
    request("GET", "v1/plan"),
  ]);
  batch(() => {
    server.value = root;
    models.value = list.data;
    plan.value = own;
    if (unread) readUnread();
  });
}

// True while the chosen model does not run jobs yet, so that its state is worth reading again.
export const isWaitingForModel = computed(
  () => models.value !== null && (model.value?.status ?? "unavailable") !== "ready",
);

// Take the settings of a query; of an empty one, those that were kept when the page was last used.
export function openSettings(query) {
  const isGiven = [...query.keys()].length > 0;
  if (!isGiven && settings.value !== NO_SETTINGS) return;
  const opened = isGiven ? query : new URLSearchParams(kept());
  unread = models.value === null ? opened : null;
  settings.value = settingsFrom(opened, fields.value);
}

// Read what a query says of fields, now that they are known; what the user has written meanwhile stays.
function readUnread() {
  const written = Object.entries(settings.value).filter(([, value]) => value !== null);
  settings.value = { ...settingsFrom(unread, fields.value), ...Object.fromEntries(written) };
  unread = null;
}

const kept = () => {
  try {
    return localStorage.getItem(KEPT) ?? "";
  } catch {
    return ""; // a browser may refuse its storage
  }
};

// Show the settings in the address, and keep them.
export function keepSettings() {
  if (unread) return;
  const query = queryOf(settings.value).toString();
  history.replaceState(history.state, "", urlOf(query ? `?${query}` : "."));
  try {
    localStorage.setItem(KEPT, query);
  } catch {
    /* a browser may refuse its storage */
  }
}

export function change(values) {
  batch(() => {
    settings.value = { ...settings.value, ...values };
    forgive(Object.keys(values));
  });
}

// Choose a model. What was chosen for another one is its default again: sizes, steps and guidance differ.
export function chooseModel(id) {
  const names = Object.keys(settings.value).filter((name) => !FOR_ANY_MODEL.includes(name));
  change({ ...Object.fromEntries(names.map((name) => [name, null])), model: id });
  inputs.value = NO_INPUTS;
}

// Forget the errors of fields that have changed.
export function forgive(names) {
  if (refusal.value === null) return;
  const fields = Object.entries(refusal.value.fields).filter(([name]) => !names.includes(name));
  refusal.value = { ...refusal.value, fields: Object.fromEntries(fields), summary: null, seconds: null };
}

// Fill the form with what a job was asked for; `changes` on top of it.
export function reuse(job, changes = {}) {
  const known = models.value.find((one) => one.id === job.model);
  const { images, mask, named, prompts, controls } = filesOfJob(job, known);
  batch(() => {
    settings.value = { ...settingsOfJob(job, known), ...changes };
    inputs.value = {
      images: images.map(shown),
      mask: mask ? shown(mask) : null,
      named: Object.fromEntries(Object.entries(named).map(([name, file]) => [name, shown(file)])),
      prompts: prompts.map(shown),
      controls: controls.map((use) => ({ mode: null, ...use, image: shown(use.image) })),
    };
    refusal.value = null;
  });
}

const shown = (id) => ({ id, url: `v1/files/${id}/content`, name: "the image of that job" });

// Upload an image for `field`, such as "image" or "mask". An error stands beside that field.
export async function upload(file, field) {
  try {
    const sent = await sendable(file, model.value.limits.max_size);
    const form = new FormData();
    form.append("file", sent, sent.name ?? "image.png");
    const stored = await request("POST", "v1/files", form);
    forgive([field]);
    return {
      id: stored.id,
      name: file.name,
      width: stored.width,
      height: stored.height,
      url: URL.createObjectURL(sent),
    };
  } catch (error) {
    const told = refusalOf(error);
    const message = told.summary ?? Object.values(told.fields)[0];
    refusal.value = { ...told, fields: { [field]: message }, summary: null };
    return null;
  }
}

export async function addImage(file) {
  const image = await upload(file, "image");
  if (!image) return;
  const { images } = inputs.value;
  const most = model.value.limits.max_input_images;
  inputs.value = { ...inputs.value, images: [...images.slice(0, most - 1), image], mask: null };
}

// A painted mask keeps its strokes, so that it can be changed.
export async function setMask(file, strokes = null) {
  const mask = file && (await upload(file, "mask"));
  inputs.value = { ...inputs.value, mask: mask ? { ...mask, strokes } : null };
}

export function removeImage(place) {
  forgive(["image", "mask", "strength"]);
  const images = inputs.value.images.filter((_, index) => index !== place);
  inputs.value = { ...inputs.value, images, mask: null };
}

export async function addPrompt(file) {
  const image = await upload(file, "image_prompts");
  if (image) setPrompts([...inputs.value.prompts, image].slice(0, model.value.limits.max_image_prompts));
}

export function setPrompts(prompts) {
  forgive(["image_prompts", "image_prompt_scale"]);
  inputs.value = { ...inputs.value, prompts };
}

// Upload an image for the first ControlNet that has none yet.
export async function addControl(file) {
  const image = await upload(file, "controls");
  if (!image) return;
  const { controls } = inputs.value;
  const { controlnets } = model.value.limits;
  const name = controlnets.find((one) => controls.every((other) => other.name !== one)) ?? controlnets[0];
  const mode = firstMode(model.value.limits, name);
  setControls([...controls, { name, image, weight: 1, start: 0, end: 1, mode }].slice(0, MOST_CONTROLS));
}

// Return how many kinds of images a ControlNet knows; 0 for one that knows a single kind.
export const numModes = ({ controlnets, control_modes }, name) => control_modes[controlnets.indexOf(name)] ?? 0;

export const firstMode = (limits, name) => (numModes(limits, name) > 0 ? 0 : null);

export function setControls(controls) {
  forgive(["controls", "control_image"]);
  inputs.value = { ...inputs.value, controls };
}

// Upload the image of a field that has one; without a file the field has none.
export async function setNamed(field, file) {
  const image = file && (await upload(file, field));
  forgive(image ? [] : [field]);
  inputs.value = { ...inputs.value, named: { ...inputs.value.named, [field]: image || null } };
}
