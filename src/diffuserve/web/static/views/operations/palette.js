// Colors of charts: CSS variables, read again when the theme changes, since a canvas knows no CSS.
import { signal } from "../../vendor/ui.js";

// Counts changes of the theme; a chart that reads it draws itself anew.
export const theme = signal(0);

const changed = () => (theme.value += 1);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
new MutationObserver(changed).observe(document.documentElement, { attributeFilter: ["class", "data-theme", "style"] });

export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
