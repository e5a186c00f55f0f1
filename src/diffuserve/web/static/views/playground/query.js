// Settings as a URL's query and as what the browser keeps. Names are those of the job's JSON; null stands for
// the model's default. Images and keys are never among them.

const whole = (text) => (/^\d{1,15}$/.test(text) ? Number(text) : null);
const number = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
const truth = (text) => (text === "true" ? true : text === "false" ? false : null);
const words = (text) => text;

// Adapters are NAME:WEIGHT, with commas between them.
const adapters = (text) => {
  const named = text.split(",").map((part) => part.split(":"));
  const uses = named.map(([name, weight = "1"]) => ({ name, weight: number(weight) }));
  const read = uses.filter(({ name, weight }) => name && weight !== null);
  return read.length ? read : null;
};
const written = (value) =>
  Array.isArray(value) ? value.map(({ name, weight }) => `${name}:${weight}`).join(",") : String(value);

// Settings of every form; those of a request's fields are read as what the server says that they are.
const READERS = {
  prompt: words,
  model: words,
  kind: words,
  priority: words,
  output_format: words,
  expand_prompt: truth,
  live: truth,
};
const READERS_OF_KINDS = { text: words, choice: words, integer: whole, number, adapters };

export const NO_SETTINGS = Object.fromEntries(Object.keys(READERS).map((name) => [name, null]));

// Return the settings that a query names; others are null. `fields` are those of the models that have controls.
export function settingsFrom(query, fields = []) {
  const ofFields = fields.map(({ name, kind }) => [name, READERS_OF_KINDS[kind]]);
  const readers = { ...Object.fromEntries(ofFields), ...READERS };
  const read = ([name, reader]) => [name, query.has(name) ? reader(query.get(name)) : null];
  return { ...NO_SETTINGS, ...Object.fromEntries(Object.entries(readers).map(read)) };
}

// Return the query of settings, without what is the model's default.
export function queryOf(settings) {
  const named = Object.entries(settings).filter(([, value]) => (value ?? "") !== "");
  return new URLSearchParams(named.map(([name, value]) => [name, written(value)]));
}
