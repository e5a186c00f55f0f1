// What a job has made, large: its images, its clips, its sounds, or how far it is.
import { html, useRef, useState } from "../../vendor/ui.js";
import { capitalized } from "../../sentence.js";
import { isFinal } from "../../components/job_state.js";
import { ProgressBar } from "../../components/progress_bar.js";
import { LiveClip } from "../../components/previews.js";
import { AUDIO, VIDEO, artifactsOf, outputsOf, promptOf, stateOf } from "../gallery/job_words.js";

export function Media({ job, previews, isLive }) {
  const outputs = outputsOf(job);
  if (!outputs.length && isFinal(job)) return html`<${Nothing} job=${job} />`;
  if (!outputs.length) return html`<${Unfinished} job=${job} previews=${previews} isLive=${isLive} />`;
  return html`
    <div class=${`job-media ${outputs.length > 1 ? "several" : ""}`}>
      ${outputs.map((output) => html`<${Output} key=${output.name} job=${job} output=${output} />`)}
    </div>`;
}

function Output({ job, output }) {
  return output.role === "audio"
    ? html`<${Sound} job=${job} sound=${output} />`
    : html`<${Picture} job=${job} output=${output} />`;
}

function Sound({ job, sound }) {
  const [picture] = artifactsOf(job, "thumbnail").filter(({ index }) => index === sound.index);
  return html`
    <figure class="job-sound">
      ${picture && html`<img src=${picture.url} alt="How loud it is, from beginning to end" />`}
      <audio src=${sound.url} controls preload="metadata" aria-label=${promptOf(job)} />
      <figcaption>${Number(sound.seconds.toFixed(2))} s · ${sound.sample_rate.toLocaleString("en")} Hz
        ${sound.seed === null ? "" : ` · seed ${sound.seed}`}
        ${" · "}<a href=${sound.url} download=${`${job.id}-${sound.name}`}>Download</a></figcaption>
    </figure>`;
}

function Picture({ job, output }) {
  const [isGone, setGone] = useState(false);
  const box = { aspectRatio: `${output.width} / ${output.height}`, width: fitting(output) };
  if (isGone) return html`<p class="job-none" style=${box}>The file is not there any more.</p>`;
  const isVideo = output.content_type.startsWith("video/");
  return html`
    <figure>
      ${isVideo ? html`<${Clip} job=${job} clip=${output} box=${box} />` : html`
        <a href=${output.url} target="_blank" rel="noopener">
          <img src=${output.url} alt=${promptOf(job)} style=${box} onError=${() => setGone(true)} />
        </a>`}
      <figcaption>${output.width} × ${output.height}${output.seed === null ? "" : ` · seed ${output.seed}`}
        ${" · "}<a href=${output.url} download=${`${job.id}-${output.name}`}>Download</a></figcaption>
    </figure>`;
}

// Small images are enlarged to be seen, and large ones are as tall as the window at most.
const fitting = ({ width, height }) => `min(100%, ${Math.max(width, 448)}px, calc(75vh * ${width} / ${height}))`;

function Clip({ job, clip, box }) {
  const [poster] = artifactsOf(job, "poster").filter(({ index }) => index === clip.index);
  const video = useRef(null);
  const [sprites] = artifactsOf(job, "sprites").filter(({ index }) => index === clip.index);
  return html`
    <video ref=${video} src=${clip.url} poster=${poster?.url} controls loop muted playsinline preload="metadata"
      aria-label=${promptOf(job)} style=${box} />
    ${sprites && html`<details class="job-sprites"><summary>All frames at a glance</summary>
      <img src=${sprites.url} alt="Frames of the clip" loading="lazy" /></details>`}`;
}

const boxOf = ({ kind, input }) =>
  kind === AUDIO ? {} : { aspectRatio: `${input.width ?? 1} / ${input.height ?? 1}` };

// Of a job without a result nothing is shown that was drawn on the way: a filter may have withheld it.
const Nothing = ({ job }) => html`
  <div class="job-media">
    <div class=${`job-none ${job.status}`} style=${boxOf(job)}>
      <span>${job.error ? capitalized(job.status) : stateOf(job)}</span>
    </div>
  </div>`;

function Unfinished({ job, previews, isLive }) {
  const places = Array.from({ length: job.input.num_images ?? 1 }, (_, place) => place);
  return html`
    <div class=${`job-media ${places.length > 1 ? "several" : ""}`}>
      ${places.map((place) => html`
        <div key=${place} class=${`job-none ${job.status}`} style=${boxOf(job)}>
          ${isLive && place === 0 ? html`<${LiveClip} job=${job} />` : html`
            <${Preview} job=${job} source=${previews[place]} />`}
        </div>`)}
      <${ProgressBar} label="Progress" fraction=${job.status === "running" ? job.progress.fraction : null}
        text=${stateOf(job)} />
    </div>`;
}

const Preview = ({ job, source }) =>
  source && html`<img class=${job.kind === VIDEO ? "strip" : ""} src=${source} alt="Preview" />`;
