// Cancel a job, or queue it again; the next delta shows what came of it.
import { html } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { Action } from "./action.js";
import { ask } from "./confirm.js";
import { shortId } from "./numbers.js";

export function CancelJob({ id, isCanceling, onDone = () => {} }) {
  if (isCanceling) return html`<span class="quiet">canceling</span>`;
  const cancel = () =>
    ask({
      title: "Cancel this job?",
      text: `${id} ends without a result. Its client sees that it was canceled; it can be queued again.`,
      label: "Cancel the job",
      act: async () => onDone(await request("POST", `v1/jobs/${id}/cancel`)),
    });
  return html`<button class="small" aria-label=${`Cancel ${id}`} title=${shortId(id)} onClick=${cancel}>Cancel</button>`;
}

export const RequeueJob = ({ id, code }) => html`
  <${Action} key=${id} label="Requeue" title=${`Requeue the example of ${code}`} done="queued again"
    act=${() => request("POST", `v1/jobs/${id}/requeue`)} />
`;
