// A run: its images, what they are doing, and what to do next.
import { html, useState } from "../../vendor/ui.js";
import { isFinal } from "../../components/job_state.js";
import { duration } from "../../components/time.js";
import { bodyOf, editImage, reuseSettings, sameSeed, takesImages, vary } from "./actions.js";
import { Code } from "./code.js";
import { stageOf, timingsOf } from "./progress.js";
import { capitalized } from "../../sentence.js";
import { remedyOf } from "./refusals.js";
import { cancel, dismiss, watched } from "./runs.js";
import { Tile } from "./tile.js";

export function RunCard({ run }) {
  const states = run.ids.map((id) => watched.value[id]).filter(Boolean);
  if (!states.length) return null;
  const jobs = states.map((state) => state.job);
  const isDone = jobs.every(isFinal);
  const tiles = states.flatMap((state) => placesOf(state.job).map((index) => ({ state, index })));
  const prompt = jobs[0].prompt?.original ?? jobs[0].input.prompt;
  const isAlone = tiles.length === 1;
  return html`
    <article class="run ${isAlone ? "alone" : ""}" aria-label=${`Run: ${prompt}`}
      aria-busy=${String(!isDone)}>
      <header class="run-head">
        <p class="run-prompt">${prompt}</p>
        <p class="run-facts">${factsOf(jobs[0])}</p>
      </header>
      <div class="tiles">
        ${tiles.map(
          ({ state, index }) => html`
          <figure class="piece" key=${`${state.job.id}-${index}`}>
            <${Tile} watched=${state} index=${index} />
            <${Caption} state=${state} index=${index} isAlone=${isAlone} />
          </figure>`,
        )}
      </div>
      <${State} states=${states} />
      ${isDone ? html`<${Next} run=${run} jobs=${jobs} />` : html`<${Running} jobs=${jobs} />`}
    </article>`;
}

const factsOf = ({ model, input }) =>
  [model, sizeOf(input), `${input.num_inference_steps} steps`, ...[...(input.controls ?? []), ...(input.adapters ?? [])].map(weighed)].join(" · ");

const weighed = ({ name, weight }) => `${name} ${weight}`;

const sizeOf = ({ width, height, seconds }) => (width ? `${width}×${height}` : `${seconds} s`);

const placesOf = (job) => Array.from({ length: job.input.num_images ?? 1 }, (_, index) => index);

const WORDS = { image: "image", video: "clip", audio: "sound" };

function Caption({ state, index, isAlone }) {
  const { job } = state;
  const artifact = job.result?.artifacts.find(
    (one) => one.index === index && one.role in WORDS,
  );
  if (!artifact) return html`<figcaption>${isAlone || isFinal(job) ? "" : lineOf(state)}</figcaption>`;
  const what = WORDS[artifact.role];
  return html`
    <figcaption>
      <button type="button" class="seed" title="Same seed, other prompt"
        onClick=${() => sameSeed(job, artifact.seed)}>
        Seed ${artifact.seed}</button>
      <span class="row">
        ${
          what === "image" &&
          takesImages() &&
          html`
          <button type="button" onClick=${() => editImage(job, artifact)}
            aria-label=${`Edit image ${index + 1}`}>Edit</button>`
        }
        <a class="as-link-button" href=${artifact.url} download=${artifact.name}
          aria-label=${isAlone ? null : `Download ${what} ${index + 1}`}>Download</a>
      </span>
    </figcaption>`;
}

// What goes on, said aloud when it changes; of several jobs, of each that differs.
function State({ states }) {
  const failed = states.filter(({ job }) => isFinal(job) && job.status !== "succeeded");
  const running = states.filter(({ job }) => !isFinal(job));
  const line =
    states.length > 1 ? `${states.length - running.length} of ${states.length} done` : running.map(lineOf);
  const warnings = [...new Set(states.flatMap(({ job }) => job.result?.warnings ?? []))];
  return html`
    <div class="run-state">
      <p role="status">${running.length ? line : failed.length ? "" : summaryOf(states)}</p>
      ${failed.map(({ job }) => html`<${Failure} key=${job.id} job=${job} />`)}
      ${warnings.map((warning) => html`<p class="warning" key=${warning}>${capitalized(warning)}</p>`)}
    </div>`;
}

const lineOf = ({ job, isCanceling, isAway, problem }) =>
  problem ??
  (isCanceling ? "Canceling…" : isAway ? `${stageOf(job)} · the server is away, trying again` : stageOf(job));

function summaryOf(states) {
  const ends = states.map(({ job }) => (Date.parse(job.finished_at) - Date.parse(job.created_at)) / 1000);
  return `Done in ${duration(Math.max(...ends))}`;
}

function Failure({ job }) {
  const titles = { canceled: "Canceled", expired: "Expired" };
  const title = titles[job.status] ?? (job.error?.code === "output_blocked" ? "Withheld" : "Failed");
  return html`
    <div class="failure ${job.status}" role="alert">
      <b>${title}</b>
      ${job.error && html`<p>${capitalized(job.error.message)}</p>`}
      <p>${remedyOf(job)}</p>
    </div>`;
}

function Running({ jobs }) {
  const live = jobs.filter((job) => !isFinal(job));
  const stop = () => live.forEach((job) => cancel(job.id));
  const isEnding = live.every((job) => job.status === "canceling" || watched.value[job.id]?.isCanceling);
  return html`<div class="run-actions"><button type="button" onClick=${stop}
    disabled=${isEnding}>Cancel</button></div>`;
}

function Next({ run, jobs }) {
  const [shown, show] = useState(null);
  const job = jobs.find((one) => one.status === "succeeded") ?? jobs[0];
  const toggle = (name) => show(shown === name ? null : name);
  const pressed = (name) => ({ "aria-expanded": String(shown === name), onClick: () => toggle(name) });
  return html`
    <div class="run-actions">
      <button type="button" onClick=${() => vary(run.body)}>Variations</button>
      <button type="button" onClick=${() => reuseSettings(job)}>Reuse these settings</button>
      <button type="button" onClick=${() => sameSeed(job, job.input.seed)}>Same seed, other prompt</button>
      <button type="button" ...${pressed("code")}>Code</button>
      ${job.status === "succeeded" && html`<button type="button" ...${pressed("timings")}>Timings</button>`}
      <a data-view class="as-link-button" href=${`gallery/${job.id}`}>Details</a>
      <button type="button" class="quiet" onClick=${() => dismiss(run)}
        title="Stays in the gallery">Hide</button>
    </div>
    <div class="run-more">
      ${shown === "code" && html`<${Code} body=${bodyOf(run, job)} />`}
      ${shown === "timings" && html`<${Timings} job=${job} />`}
    </div>`;
}

const Timings = ({ job }) => html`
  <dl class="timings">
    ${timingsOf(job).map(
      ([name, seconds]) => html`<div key=${name}><dt>${name}</dt><dd>${duration(seconds)}</dd></div>`,
    )}
  </dl>`;
