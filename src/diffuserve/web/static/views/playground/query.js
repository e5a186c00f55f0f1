// Settings as a URL's query and as what the browser keeps. Names are those of the job's JSON; null stands for
// the model's default. Images and keys are never among them.

const whole = (text) => (/^\d{1,15}$/.test(text) ? Number(text) : null);
const number = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
const truth = (text) => (text === "true" ? true : text === "false" ? false : null);
const words = (text) => text;

const READERS = {
  prompt: words,
  negative_prompt: words,
  model: words,
  kind: words,
  sampler: words,
  priority: words,
  output_format: words,
  width: whole,
  height: whole,
  num_inference_steps: whole,
  seed: whole,
  num_images: whole,
  num_frames: whole,
  fps: whole,
  guidance_scale: number,
  strength: number,
  expand_prompt: truth,
  live: truth,
};

export const NO_SETTINGS = Object.fromEntries(Object.keys(READERS).map((name) => [name, null]));

// Return the settings that a query names; others are null.
export function settingsFrom(query) {
  const named = Object.keys(READERS).filter((name) => query.has(name));
  return {
    ...NO_SETTINGS,
    ...Object.fromEntries(named.map((name) => [name, READERS[name](query.get(name))])),
  };
}

// Return the query of settings, without what is the model's default.
export function queryOf(settings) {
  const named = Object.keys(READERS).filter((name) => settings[name] !== null && settings[name] !== "");
  return new URLSearchParams(named.map((name) => [name, String(settings[name])]));
}
