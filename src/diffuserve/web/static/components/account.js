// Who is signed in, and the way out. An open server knows nobody.
import { html } from "../vendor/ui.js";
import { isSignedIn, session, signOut } from "../session.js";

export function Account() {
  if (!isSignedIn.value || session.value.is_open) return null;
  const { role, tenant_id: tenant } = session.value;
  return html`
    <span class="account">${role === "operator" ? "Operator" : html`Tenant <strong>${tenant}</strong>`}</span>
    <button type="button" class="small" onClick=${() => signOut()}>Sign out</button>
    <button type="button" class="small" onClick=${() => signOut(true)}>Sign out everywhere</button>`;
}
