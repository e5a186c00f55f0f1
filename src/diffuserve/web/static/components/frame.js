// The frame of every view: links between the views, who is signed in, what went wrong, and the view itself.
import { html } from "../vendor/ui.js";
import { route } from "../router.js";
import { isOperator, isSignedIn, session } from "../session.js";
import { Banners } from "./banners.js";
import { Footer } from "./footer.js";
import { Account } from "./account.js";
import { SignIn } from "./sign_in.js";
import { ThemeChoice } from "./theme_choice.js";

const Link = ({ name, path, children }) =>
  html`<a data-view href=${path} aria-current=${route.value.name === name ? "page" : null}>${children}</a>`;

export function Frame() {
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="frame">
      <a data-view class="brand" href="."><span class="mark" aria-hidden="true" />diffuserve</a>
      ${isSignedIn.value && html`
        <nav aria-label="Views">
          <${Link} name="playground" path=".">Playground<//>
          <${Link} name="gallery" path="gallery">Gallery<//>
          ${isOperator.value && html`<${Link} name="operations" path="ops">Operations<//>`}
        </nav>`}
      <div class="frame-end">
        <${Account} />
        <${ThemeChoice} />
      </div>
    </header>
    <${Banners} />
    <main id="main" tabindex="-1"><${Content} /></main>
    <${Footer} />
  `;
}

// Nothing of a view is there before it is known who asks.
function Content() {
  const { View, name, params, query } = route.value;
  if (session.value === null) return null;
  if (!isSignedIn.value && name !== "not_found") return html`<${SignIn} />`;
  return View && html`<${View} ...${params} query=${query} />`;
}

// The base of all links is the server's root, not this page: a fragment alone would lead there.
function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}
