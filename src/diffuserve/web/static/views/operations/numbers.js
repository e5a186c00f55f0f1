// Numbers as the operators' view writes them: short, with their unit, and "–" for what is not known.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });
const MISSING = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// 12,345
export const count = (value) => (known(value) ? whole.format(value) : MISSING);

// 0.12, 3.4, 56, 1.2K
export const brief = (value) => (known(value) ? short.format(Math.abs(value) < 0.005 ? 0 : value) : MISSING);

// 0.934 as 93%
export const percent = (share) => (known(share) ? `${Math.round(100 * share)}%` : MISSING);

// 1 worker, 2 workers
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// 1536 MB as 1.5 GB
export function bytes(value) {
  if (!known(value)) return MISSING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(value, 1)) / 3), units.length - 1);
  return `${short.format(value / 1000 ** power)} ${units[power]}`;
}

// 0.032 as 32 ms, 40 as 40 s, 190 as 3 min, 7300 as 2 h
export function seconds(value) {
  if (!known(value)) return MISSING;
  if (value > 0 && value < 0.9995) return `${short.format(1000 * value)} ms`;
  if (value < 99.5) return `${short.format(value)} s`;
  if (value < 5970) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

// 3/20, or a word before the first step is known
export const steps = (step, total) => (total ? `${step}/${total}` : "starting");

// The end of an id, which tells it from others: job_0190…a1b2
export const shortId = (id) => (id.length <= 16 ? id : `${id.slice(0, id.indexOf("_") + 1)}…${id.slice(-6)}`);
