// Entry of the page: the frame around the views, and the view of the current path.
import { html, render } from "./vendor/ui.js";
import { Frame } from "./components/frame.js";
import { startLooking } from "./connection.js";
import { startNotices } from "./notices.js";
import { startRouter } from "./router.js";
import { loadSession } from "./session.js";
import { startTheme } from "./theme.js";

startNotices();
startTheme();
startRouter();
loadSession();
startLooking();
render(html`<${Frame} />`, document.getElementById("page"));
