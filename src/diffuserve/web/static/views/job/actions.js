// What can be done with a job.
import { html, useState } from "../../vendor/ui.js";
import { navigate, urlOf } from "../../router.js";
import { request } from "../../api.js";
import { isOperator } from "../../session.js";
import { CopyButton } from "../../components/copy_button.js";
import { Confirm } from "../../components/dialog.js";
import { isFinal } from "../../components/job_state.js";
import { Problem } from "../../components/problem.js";
import { outputsOf, promptOf } from "../gallery/job_words.js";
import { formatOf } from "../playground/job_request.js";

// What the playground has no control for; neither are images in its address, and the prompt is the client's own.
const NOT_REUSED = ["prompt", "max_sequence_length"];

export function playgroundPath(job) {
  const isReused = ([name, value]) => !NOT_REUSED.includes(name) && value !== null && typeof value !== "object";
  const named = Object.entries(job.input).filter(isReused);
  const format = formatOf(job);
  const others = format ? [["output_format", format]] : [];
  const all = [["prompt", promptOf(job)], ["model", job.model], ["kind", job.kind], ...named, ...others];
  return `?${new URLSearchParams(all.map(([name, value]) => [name, String(value)]))}`;
}

export function Actions({ watched, job }) {
  const [isAsking, setAsking] = useState(false);
  const [error, setError] = useState(null);
  const act = (path) => request("POST", path).then((changed) => watched.again(changed), setError);
  const remove = async () => {
    await request("DELETE", `v1/jobs/${job.id}`);
    watched.stop();
    navigate("gallery");
  };
  const several = outputsOf(job).length > 1;
  return html`
    <div class="job-actions">
      ${outputsOf(job).length > 0 && html`
        <a class="button primary" href=${several ? `v1/jobs/archive?id=${job.id}` : urlOf(`v1/jobs/${job.id}/result`)}
          download=${several ? `${job.id}.zip` : fileName(job)}>Download</a>`}
      <a class="button" data-view href=${playgroundPath(job)}>Reuse in the playground</a>
      ${!isFinal(job) && html`
        <button type="button" disabled=${job.status === "canceling"}
          onClick=${() => act(`v1/jobs/${job.id}/cancel`)}>Cancel</button>`}
      ${isOperator.value && isFinal(job) && job.status !== "succeeded" && html`
        <button type="button" onClick=${() => act(`v1/jobs/${job.id}/requeue`)}>Requeue</button>`}
      <${CopyButton} text=${job.id} label="Copy id" />
      <button type="button" class="danger" onClick=${() => setAsking(true)}>Delete…</button>
    </div>
    <${Problem} error=${error} />
    <${Confirm} isOpen=${isAsking} title="Delete this job?" action="Delete" onConfirm=${remove}
      onClose=${() => setAsking(false)}>
      <p>Its files are deleted too.${isFinal(job) ? "" : " It is canceled first."}</p>
    <//>`;
}

const fileName = (job) => `${job.id}-${outputsOf(job)[0].name}`;
