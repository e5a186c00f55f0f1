// In place of a view whose module did not come: the server is away, or was upgraded and has other modules now.
import { html, useEffect } from "../vendor/ui.js";
import { lookForServer, numReturns } from "../connection.js";

export default function NotLoaded() {
  useEffect(() => {
    const before = numReturns.value;
    lookForServer().then(() => numReturns.value > before && location.reload());
  }, []);
  return html`
    <h1>This view could not be loaded</h1>
    <p>The server may be away, or have been upgraded while the page was open.</p>
    <button class="primary" onClick=${() => location.reload()}>Load the page again</button>`;
}
