// Times and durations in words. duration(75) is "1 min 15 s". relativeTime("2026-01-01T…") is "3 min ago".
// Ago({ at }): that text, kept true while it is shown, with the full local time as its title.
import { html, signal, useEffect } from "../vendor/ui.js";

const UNITS = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];
const now = signal(Date.now());
let numShown = 0;
let timer = null;

export function duration(seconds) {
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1).replace(/\.0$/, "")} s`;
  const whole = Math.round(seconds);
  const place = UNITS.findIndex(([size]) => whole >= size);
  const [size, unit] = UNITS[place];
  const [smaller, smallerUnit] = UNITS[place + 1] ?? [];
  const rest = smaller ? Math.floor((whole % size) / smaller) : 0;
  return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${smallerUnit}` : "");
}

export function relativeTime(at, reference = Date.now()) {
  const seconds = Math.round((reference - Date.parse(at)) / 1000);
  if (Math.abs(seconds) < 5) return "just now";
  const [size, unit] = UNITS.find(([length]) => Math.abs(seconds) >= length);
  const count = Math.round(Math.abs(seconds) / size);
  return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
}

// One timer serves all that are shown.
function useNow() {
  useEffect(() => {
    numShown += 1;
    timer ??= setInterval(() => {
      now.value = Date.now();
    }, 1000);
    return () => {
      numShown -= 1;
      if (numShown) return;
      clearInterval(timer);
      timer = null;
    };
  }, []);
  return now.value;
}

export function Ago({ at }) {
  const current = useNow();
  return html`<time datetime=${at} title=${new Date(at).toLocaleString()}>${relativeTime(at, current)}</time>`;
}
