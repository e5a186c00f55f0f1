// The frame of every view: the name, the links between views, and the view itself.
import { html } from "../vendor/ui.js";
import { route } from "../router.js";
import { isOperator } from "../session.js";

const Link = ({ name, path, children }) =>
  html`<a data-view href=${path} aria-current=${route.value.name === name ? "page" : null}>${children}</a>`;

export function Frame() {
  const { View, params, query } = route.value;
  return html`
    <header class="frame">
      <a data-view class="brand" href=".">diffuserve</a>
      <nav aria-label="Views">
        <${Link} name="playground" path=".">Playground<//>
        <${Link} name="gallery" path="gallery">Gallery<//>
        ${isOperator.value && html`<${Link} name="operations" path="ops">Operations<//>`}
      </nav>
    </header>
    <main id="main">${View && html`<${View} ...${params} query=${query} />`}</main>
  `;
}
