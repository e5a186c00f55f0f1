// The choice between the system's colors, light and dark ones.
import { html } from "../vendor/ui.js";
import { chooseTheme, theme, THEMES } from "../theme.js";

export function ThemeChoice() {
  return html`
    <label class="theme-choice">
      <span class="visually-hidden">Colors</span>
      <select class="small" value=${theme.value} onChange=${(event) => chooseTheme(event.target.value)}>
        ${THEMES.map((name) => html`<option key=${name} value=${name}>${name[0].toUpperCase() + name.slice(1)}</option>`)}
      </select>
    </label>`;
}
