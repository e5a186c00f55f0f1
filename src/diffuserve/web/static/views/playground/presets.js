// Sizes and lengths to choose from, derived from a model's resource alone.

const ASPECTS = [
  ["Square", 1, 1],
  ["Landscape", 4, 3],
  ["Portrait", 3, 4],
  ["Wide", 16, 9],
  ["Tall", 9, 16],
];
const MOST_DEVIATION = 0.15; // of proportions from those of the name, after rounding to the model's multiple

// Return sizes { name, width, height }: those that the server allows, where it allows only some; else the
// model's own first, then others that it has learned.
export function sizesOf(model) {
  const { width, height } = model.defaults;
  const shapes = ASPECTS.map(([name, across, down]) => ({ name, ratio: across / down }));
  if (isLimited(model)) return model.tiers.sizes.map((size) => allowed(size, shapes));
  const own = { name: nameOf(shapes, width / height), width, height };
  const others = shapes.map((shape) => sizeOf(shape, width * height, model)).filter(Boolean);
  return distinct([own, ...others, ...largest(model)]);
}

// True where the server allows only some sizes.
export const isLimited = (model) => Boolean(model.tiers?.sizes.length);

function allowed(size, shapes) {
  const [width, height] = size.split("x").map(Number);
  return { name: nameOf(shapes, width / height), width, height };
}

// Return the lengths of clips { num_frames, seconds } that a model makes, its own among them.
export function lengthsOf(model, fps) {
  const { temporal_stride: stride, max_frames: most } = model.limits;
  const own = model.defaults.num_frames;
  const wanted = [0.5, 1, 2, 3, 5].map((seconds) => Math.round((seconds * fps - 1) / stride) * stride + 1);
  const known = [...new Set([own, ...wanted])].filter((frames) => frames > 1 && frames <= most);
  return known
    .sort((one, other) => one - other)
    .map((frames) => ({ num_frames: frames, seconds: frames / fps }));
}

// Return the name of the aspect nearest to width / height.
function nameOf(shapes, ratio) {
  const distance = (shape) => Math.abs(Math.log(shape.ratio / ratio));
  return shapes.reduce((best, shape) => (distance(shape) < distance(best) ? shape : best)).name;
}

function sizeOf({ name, ratio }, pixels, model) {
  const width = sideOf(Math.sqrt(pixels * ratio), model);
  const height = sideOf(Math.sqrt(pixels / ratio), model);
  const deviation = Math.abs(Math.log(width / height / ratio));
  return deviation <= MOST_DEVIATION && width * height <= model.limits.max_pixels
    ? { name, width, height }
    : null;
}

function sideOf(pixels, { limits, learned_sizes: learned }) {
  const step = limits.size_multiple;
  const least = Math.max(limits.min_size, learned?.min ?? 0);
  const most = Math.min(limits.max_size, learned?.max ?? limits.max_size);
  const nearest = Math.round(pixels / step) * step;
  return Math.min(Math.max(nearest, Math.ceil(least / step) * step), Math.floor(most / step) * step);
}

function largest(model) {
  if (!model.learned_sizes) return [];
  const side = sideOf(model.learned_sizes.max, model);
  const isLarger = side * side > model.defaults.width * model.defaults.height;
  return isLarger && side * side <= model.limits.max_pixels
    ? [{ name: "Large", width: side, height: side }]
    : [];
}

function distinct(sizes) {
  return [
    ...new Map(sizes.toReversed().map((size) => [`${size.width}x${size.height}`, size])).values(),
  ].reverse();
}
