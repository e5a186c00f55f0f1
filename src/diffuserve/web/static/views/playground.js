// The playground: describe an image, and watch it being drawn.
import { html, useEffect, useState } from "../vendor/ui.js";
import { session } from "../session.js";
import { submitAll } from "./playground/actions.js";
import { Form } from "./playground/form.js";
import { jobRequest } from "./playground/job_request.js";
import { RunCard } from "./playground/run_card.js";
import { openRuns, restoreRuns, runs } from "./playground/runs.js";
import {
  change,
  inputs,
  isWaitingForModel,
  keepSettings,
  loadServer,
  model,
  openSettings,
  settings,
} from "./playground/state.js";

const LOOK_AGAIN_MS = 2000;
const KEEP_MS = 300; // after the last change: browsers limit how often the address may change

export default function Playground({ query }) {
  const [isBusy, setBusy] = useState(false);
  const problem = useServer();
  useEffect(() => openSettings(query), [query.toString()]);
  useEffect(() => {
    const timer = setTimeout(keepSettings, KEEP_MS);
    return () => clearTimeout(timer);
  }, [settings.value]);
  const generate = async () => {
    if (!settings.value.prompt?.trim() && model.value.example_prompt)
      change({ prompt: model.value.example_prompt });
    setBusy(true);
    await submitAll([jobRequest(settings.value, model.value, inputs.value)]);
    setBusy(false);
  };
  return html`
    <div class="playground">
      <h1 class="visually-hidden">Playground</h1>
      <div class="playground-panel">
        ${problem && html`<p class="refusal" role="alert">${problem}</p>`}
        <${Form} onSubmit=${generate} isBusy=${isBusy} />
      </div>
      <section class="playground-results" aria-label="Results">
        ${runs.value.map((run) => html`<${RunCard} key=${run.key} run=${run} />`)}
        ${!runs.value.length && html`<${Empty} />`}
      </section>
    </div>`;
}

// Read what the server offers, and again while the chosen model is not ready. Return what goes wrong.
function useServer() {
  const [problem, setProblem] = useState(null);
  const load = () =>
    loadServer().then(
      () => setProblem(null),
      (error) => setProblem(error.message),
    );
  useEffect(() => {
    openRuns(session.value?.tenant_id ?? null);
    load().then(restoreRuns);
  }, [session.value?.role, session.value?.tenant_id]);
  const isWaiting = isWaitingForModel.value || problem !== null;
  useEffect(() => {
    if (!isWaiting) return undefined;
    const timer = setInterval(load, LOOK_AGAIN_MS);
    return () => clearInterval(timer);
  }, [isWaiting]);
  return problem;
}

const Empty = () => html`
  <div class="empty">
    <p>Your images appear here</p>
  </div>`;
