// Who uses the page: the session that the server keeps in a cookie which no script can read.
import { computed, signal } from "./vendor/ui.js";
import { request } from "./api.js";

// The server's SessionResource, or null until it is known: { is_open, role, tenant_id, csrf_token }.
export const session = signal(null);
export const isSignedIn = computed(() => session.value !== null && session.value.role !== null);
export const isOperator = computed(() => session.value?.role === "operator");

// Ask who is signed in. While the server is away nothing changes: `connection.js` asks again.
export async function loadSession() {
  const found = await request("GET", "v1/session").catch(ignoreAbsence);
  if (found) session.value = found;
}

export async function signIn(key) {
  session.value = await request("POST", "v1/session", { key });
}

export async function signOut(everywhere = false) {
  await request("DELETE", `v1/session${everywhere ? "?everywhere=true" : ""}`);
  await loadSession();
}

// A request was refused: look whether the session has ended, so that the frame asks for a key.
export function endedSession() {
  if (isSignedIn.value) loadSession();
}

function ignoreAbsence(error) {
  if (error.status !== undefined) throw error;
}
