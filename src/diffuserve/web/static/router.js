// Paths and views: `route` holds the current view, links within the page change it without loading.
import { signal } from "./vendor/ui.js";

// A view's module is loaded when it is first shown. `:name` in a path becomes a parameter.
const VIEWS = [
  { name: "playground", path: "", load: () => import("./views/playground.js") },
  { name: "gallery", path: "gallery", load: () => import("./views/gallery.js") },
  { name: "job", path: "gallery/:jobId", load: () => import("./views/job.js") },
  { name: "operations", path: "ops", load: () => import("./views/operations.js") },
];

// { name, params, query, View }; View is null until its module is there.
export const route = signal({ name: "", params: {}, query: new URLSearchParams(), View: null });

// Return the absolute URL of a path of the server, wherever a proxy has put it.
export const urlOf = (path) => new URL(path, document.baseURI).href;

// Show the view of a path such as "gallery?status=failed", as following a link would.
export function navigate(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", urlOf(path));
  show();
}

export function startRouter() {
  addEventListener("popstate", show);
  addEventListener("click", follow);
  show();
}

function follow(event) {
  const link = event.target.closest?.("a[data-view]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  navigate(link.getAttribute("href"));
  scrollTo(0, 0);
}

async function show() {
  const path = location.pathname.slice(new URL(document.baseURI).pathname.length).replace(/\/$/, "");
  const { view, params } = viewOf(path);
  const found = { name: view.name, params, query: new URLSearchParams(location.search) };
  if (route.value.name !== view.name) route.value = { ...found, View: null };
  const { default: View } = await view.load();
  route.value = { ...found, View };
}

function viewOf(path) {
  const parts = path.split("/");
  for (const view of VIEWS) {
    const names = view.path.split("/");
    if (names.length !== parts.length) continue;
    if (!names.every((name, place) => name.startsWith(":") || name === parts[place])) continue;
    const params = names.flatMap((name, place) => (name.startsWith(":") ? [[name.slice(1), parts[place]]] : []));
    return { view, params: Object.fromEntries(params) };
  }
  return { view: VIEWS[0], params: {} };
}
