// Who uses the page: the session that the server keeps in a cookie which no script can read.
import { computed, signal } from "./vendor/ui.js";
import { request } from "./api.js";

// The server's SessionResource, or null until it is known: { is_open, role, tenant_id, csrf_token }.
export const session = signal(null);
export const isSignedIn = computed(() => session.value !== null && session.value.role !== null);
export const isOperator = computed(() => session.value?.role === "operator");

export async function loadSession() {
  session.value = await request("GET", "v1/session");
}

export async function signIn(key) {
  session.value = await request("POST", "v1/session", { key });
}

export async function signOut() {
  await request("DELETE", "v1/session");
  await loadSession();
}
