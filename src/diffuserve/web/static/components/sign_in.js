// In place of every view until someone has signed in: an API key is exchanged for a session, once.
import { html, useState } from "../vendor/ui.js";
import { signIn } from "../session.js";
import { Problem } from "./problem.js";

export function SignIn() {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    await patiently(signIn, new FormData(event.target).get("key")).catch(setError);
    setBusy(false);
  };
  return html`
    <form class="sign-in" onSubmit=${submit}>
      <h1>Sign in</h1>
      <p>This server asks for an API key. It is checked once and kept nowhere in the browser.</p>
      <label for="key">API key</label>
      <input id="key" name="key" type="password" required autocomplete="off" spellcheck=${false} autofocus
        placeholder="dfs_…" aria-invalid=${error !== null} aria-describedby="key-problem" />
      <${Problem} error=${error && told(error)} id="key-problem" />
      <button class="primary" disabled=${isBusy}>Sign in</button>
      <p class="hint">The server's administrator makes keys: <code>diffuserve keys create --tenant NAME</code></p>
    </form>`;
}

// Someone who has mistyped a key is not bothered with the second for which the server makes them wait.
async function patiently(attempt, key) {
  try {
    return await attempt(key);
  } catch (error) {
    if (error.status !== 429) throw error;
    await new Promise((resolve) => setTimeout(resolve, 1000 * error.retryAfter));
    return attempt(key);
  }
}

function told(error) {
  if (error.status === 401) return "This key is not valid: it is unknown, or was revoked.";
  if (error.status === 403) return "This key is for programs. Sign in with one of a tenant or of an operator.";
  return error;
}
