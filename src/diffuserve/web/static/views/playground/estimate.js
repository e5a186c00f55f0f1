// What the settings would take, told above the button: seconds, and what the result would warn of.
import { html, useEffect, useState } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { jobRequest } from "./job_request.js";
import { capitalized } from "../../sentence.js";
import { about, isSlow } from "./seconds.js";
import { inputs, model, settings } from "./state.js";

const PAUSE_MS = 300; // after the last change

export function Estimate() {
  const found = useEstimate();
  if (!found) return null;
  const { cost_seconds: seconds, warnings } = found;
  return html`
    <div class="estimate" role="status">
      ${warnings.map((warning) => html`<p class="warning" key=${warning}>${capitalized(warning)}.</p>`)}
      ${isSlow(seconds) && html`<p class="hint">Takes ${about(seconds)}, without a queue.</p>`}
    </div>`;
}

// Return the estimate of the present settings; null while there is none, as for settings that are refused.
function useEstimate() {
  const [found, setFound] = useState(null);
  const wanted = model.value && JSON.stringify(priced(jobRequest(settings.value, model.value, inputs.value)));
  useEffect(() => {
    if (!wanted) return undefined;
    const asking = new AbortController();
    const timer = setTimeout(() => {
      request("POST", "v1/jobs/estimate", JSON.parse(wanted), { signal: asking.signal }).then(setFound, () =>
        asking.signal.aborted || setFound(null),
      );
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      asking.abort();
    };
  }, [wanted]);
  return found;
}

// The price depends on no seed, and the page asks again only for what changes it.
function priced({ input: { seed, ...input }, ...body }) {
  return { ...body, input: { ...input, prompt: input.prompt?.trim() || model.value.example_prompt || "an image" } };
}
