// One image, clip or sound of a job: empty, its preview while it is drawn, then itself.
import { html } from "../../vendor/ui.js";
import { isFinal } from "../../components/job_state.js";
import { LiveClip } from "../../components/previews.js";
import { AUDIO, VIDEO } from "./job_request.js";
import { fractionOf, stageOf } from "./progress.js";

const MADE = { [VIDEO]: "clip", [AUDIO]: "sound" };
const promptOf = (job) => job.prompt?.original ?? job.input.prompt;

export function Tile({ watched, index }) {
  const { job } = watched;
  const artifacts = (job.result?.artifacts ?? []).filter((artifact) => artifact.index === index);
  const output = ["video", "image", "audio"]
    .map((wanted) => artifacts.find(({ role }) => role === wanted))
    .find(Boolean);
  const ratio = job.input.width ? { aspectRatio: `${job.input.width} / ${job.input.height}` } : {};
  return html`
    <div class="tile ${output ? "done" : job.status}" style=${ratio}>
      ${
        output
          ? html`<${Output} job=${job} output=${output} artifacts=${artifacts} />`
          : html`<${Unfinished} watched=${watched} index=${index} />`
      }
    </div>`;
}

function Output({ job, output, artifacts }) {
  const alt = promptOf(job);
  if (output.role === "audio")
    return html`<audio src=${output.url} controls preload="metadata" aria-label=${alt} />`;
  if (output.role !== "video") {
    return html`
      <a href=${output.url} target="_blank" rel="noopener" title="Open in full size">
        <img src=${output.url} alt=${alt} width=${output.width} height=${output.height} /></a>`;
  }
  const poster = artifacts.find(({ role }) => role === "poster");
  if (output.content_type.startsWith("image/")) return html`<img src=${output.url} alt=${alt} />`;
  return html`
    <video src=${output.url} poster=${poster?.url} controls autoplay loop muted playsinline
      aria-label=${alt} />`;
}

function Unfinished({ watched, index }) {
  const { job, previews = {}, isLive } = watched;
  if (isFinal(job)) return html`<span class="nothing" aria-hidden="true">–</span>`;
  const isClip = job.kind === VIDEO;
  const name = `Progress of ${MADE[job.kind] ?? "image"} ${index + 1}`;
  return html`
    ${
      isLive && index === 0
        ? html`<${LiveClip} job=${job} />`
        : previews[index]
          ? html`<${Preview} job=${job} source=${previews[index]} isClip=${isClip} />`
          : null
    }
    <progress max="1" value=${isBeginning(job) ? null : fractionOf(job)} aria-label=${name}>${stageOf(job)}</progress>`;
}

// Until the first step is told the bar only shows that there is work.
const isBeginning = (job) => job.status === "running" && fractionOf(job) === 0;

// It sharpens: each preview is of a later step, and shows less noise.
function Preview({ job, source, isClip }) {
  const left = job.progress.total ? 1 - job.progress.step / job.progress.total : 1;
  const blur = isClip ? {} : { filter: `blur(${(left * 3).toFixed(1)}px)` };
  return html`<img class=${isClip ? "preview strip" : "preview"} src=${source} alt="Preview"
    style=${blur} />`;
}
