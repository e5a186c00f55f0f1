// The server's version, and where its API is described.
import { html, useEffect, useState } from "../vendor/ui.js";
import { request } from "../api.js";
import { numReturns } from "../connection.js";

export function Footer() {
  const [server, setServer] = useState(null);
  useEffect(() => {
    request("GET", "").then(setServer, () => {}); // it is missing then, and nothing else
  }, [numReturns.value]);
  return html`
    <footer class="frame">
      <span>diffuserve ${server?.version}</span>
      ${server?.urls.docs && html`<a href="docs">API reference</a>`}
    </footer>`;
}
