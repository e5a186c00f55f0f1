// Paths and views: `route` holds the current view, links within the page change it without loading.
import { signal } from "./vendor/ui.js";
import NotLoaded from "./views/not_loaded.js";

// A view's module is loaded when it is first shown. `:name` in a path becomes a parameter.
const VIEWS = [
  { name: "playground", title: "Playground", path: "", load: () => import("./views/playground.js") },
  { name: "gallery", title: "Gallery", path: "gallery", load: () => import("./views/gallery.js") },
  { name: "job", title: "Job", path: "gallery/:jobId", load: () => import("./views/job.js") },
  { name: "operations", title: "Operations", path: "ops", load: () => import("./views/operations.js") },
];
const NOT_FOUND = { name: "not_found", title: "Not found", load: () => import("./views/not_found.js") };

// { name, params, query, View }; View is null until its module is there.
export const route = signal({ name: "", params: {}, query: new URLSearchParams(), View: null });

// Return the absolute URL of a path of the server, wherever a proxy has put it.
export const urlOf = (path) => new URL(path, document.baseURI).href;

// Name the page in the browser's title; a view may name what it shows more exactly.
export const setTitle = (title) => {
  document.title = `${title} · diffuserve`;
};

// Show the view of a path such as "gallery?status=failed", as following a link would.
export function navigate(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", urlOf(path));
  return show();
}

export function startRouter() {
  addEventListener("popstate", show);
  addEventListener("click", follow);
  show();
}

async function follow(event) {
  const link = event.target.closest?.("a[data-view]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  await navigate(link.getAttribute("href"));
  scrollTo(0, 0);
  document.getElementById("main")?.focus({ preventScroll: true }); // as a new page would begin at its top
}

async function show() {
  const path = location.pathname.slice(new URL(document.baseURI).pathname.length).replace(/\/$/, "");
  const { view, params } = viewOf(path);
  const found = { name: view.name, params, query: new URLSearchParams(location.search) };
  const place = location.href;
  if (route.value.name !== view.name) {
    route.value = { ...found, View: null };
    setTitle(view.title);
  }
  const { default: View } = await view.load().catch(() => ({ default: NotLoaded }));
  if (location.href === place) route.value = { ...found, View }; // unless another view was chosen meanwhile
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
  return { view: NOT_FOUND, params: {} };
}
