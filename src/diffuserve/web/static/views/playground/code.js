// The same request for programs, to copy.
import { html, useState } from "../../vendor/ui.js";
import { CopyButton } from "../../components/copy_button.js";
import { urlOf } from "../../router.js";
import { snippetsOf } from "./snippets.js";
import { models, server } from "./state.js";

export function Code({ body }) {
  const [name, show] = useState("curl");
  const defaults = models.value?.find((one) => one.id === body.model)?.defaults ?? {};
  const needsKey = server.value?.requires_key ?? false;
  const snippets = snippetsOf(body, { server: urlOf(".").replace(/\/$/, ""), needsKey, defaults });
  const shown = snippets.find((snippet) => snippet.name === name);
  return html`
    <div class="code">
      <div class="code-bar" role="group" aria-label="Language">
        ${snippets.map(
          (snippet) => html`
          <button key=${snippet.name} type="button" aria-pressed=${String(snippet.name === name)}
            onClick=${() => show(snippet.name)}>${snippet.name}</button>`,
        )}
        <span class="copy"><${CopyButton} key=${name} text=${shown.text} /></span>
      </div>
      <pre tabindex="0" aria-label=${`The request as ${name}`}><code>${shown.text}</code></pre>
    </div>`;
}
