// Light or dark: by the system, unless someone has chosen. The choice is kept in this browser.
import { computed, effect, signal } from "./vendor/ui.js";

const NAME = "diffuserve.theme";
const preference = matchMedia("(prefers-color-scheme: dark)");
const prefersDark = signal(preference.matches);

export const THEMES = ["system", "light", "dark"];
export const theme = signal(stored());
// Whether dark colors are shown; what draws on a canvas reads it, to draw again.
export const isDark = computed(() => (theme.value === "system" ? prefersDark.value : theme.value === "dark"));

export function startTheme() {
  preference.addEventListener("change", () => {
    prefersDark.value = preference.matches;
  });
  effect(() => {
    document.documentElement.dataset.theme = isDark.value ? "dark" : "light";
  });
}

export function chooseTheme(choice) {
  theme.value = choice;
  try {
    localStorage.setItem(NAME, choice);
  } catch {
    // a browser that keeps nothing for this page: the choice lasts as long as the page
  }
}

function stored() {
  try {
    const choice = localStorage.getItem(NAME);
    return THEMES.includes(choice) ? choice : "system";
  } catch {
    return "system";
  }
}
