// One job in the grid: its image, its clip's poster, how far it is, or why there is none.
import { html, useMemo, useState } from "../../vendor/ui.js";
import { isFinal } from "../../components/job_state.js";
import { ProgressBar } from "../../components/progress_bar.js";
import { renewedUrl } from "./feed.js";
import { AUDIO, VIDEO, artifactsOf, endOf, outputsOf, pictureOf, promptOf, stateOf } from "./job_words.js";

export function Tile(props) {
  const { job, isSelected, showsTenant } = props;
  // The same element again is not compared any further.
  return useMemo(() => html`<${Drawn} ...${props} />`, [job, isSelected, showsTenant]);
}

function Drawn({ job, isSelected, onSelect, showsTenant }) {
  const prompt = promptOf(job);
  return html`
    <li class="gallery-tile ${isSelected ? "selected" : ""}" data-job=${job.id}>
      <a data-view href=${`gallery/${job.id}`} class="gallery-box" aria-label=${`${prompt} – ${stateOf(job)}`}>
        <${Content} job=${job} prompt=${prompt} />
      </a>
      <label class="gallery-check">
        <input type="checkbox" checked=${isSelected} onClick=${(event) => onSelect(job.id, event)}
          aria-label=${`Select ${prompt}`} />
      </label>
      <p class="gallery-caption" title=${prompt}>
        <a data-view href=${`gallery/${job.id}`} tabindex="-1" aria-hidden="true">${prompt}</a>
      </p>
      <p class="gallery-facts">${job.model}${showsTenant && job.tenant_id ? ` · ${job.tenant_id}` : ""}</p>
    </li>`;
}

function Content({ job, prompt }) {
  const image = pictureOf(job);
  if (image) return html`<${Picture} job=${job} image=${image} alt=${prompt} />`;
  if (!isFinal(job)) return html`<${Going} job=${job} />`;
  const [end, reason] = endOf(job);
  return html`<span class="gallery-reason ${job.status}"><b>${end}</b><span>${reason}</span></span>`;
}

function Picture({ job, image, alt }) {
  const [isLooking, setLooking] = useState(false);
  const [isGone, setGone] = useState(false);
  const [renewed, setRenewed] = useState(null); // the URL, after the first one has expired
  const num = outputsOf(job).length;
  const [clip] = artifactsOf(job, "video").filter(({ content_type: type }) => type.startsWith("video/"));
  const look = () => clip && setLooking(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  const leave = () => setLooking(false);
  const renew = async () => {
    const url = renewed ? null : await renewedUrl(job, image.name);
    setRenewed(url);
    setGone(!url);
  };
  if (isGone) return html`<span class="gallery-reason"><span>The file is not there any more</span></span>`;
  return html`
    <span class="gallery-picture" onMouseEnter=${look} onMouseLeave=${leave} onFocusIn=${look} onFocusOut=${leave}>
      <img key=${renewed} src=${renewed ?? image.url} alt=${alt} loading="lazy" decoding="async" onError=${renew} />
      ${isLooking && html`<video src=${clip.url} autoplay loop muted playsinline aria-hidden="true" />`}
      ${job.kind === VIDEO && html`<span class="gallery-badge">▶ clip</span>`}
      ${job.kind === AUDIO && html`<span class="gallery-badge">♪ sound</span>`}
      ${num > 1 && html`<span class="gallery-badge">${num} ${job.kind === AUDIO ? "sounds" : "images"}</span>`}
    </span>`;
}

const Going = ({ job }) => html`
  <span class="gallery-going">
    <span>${stateOf(job)}</span>
    ${job.status === "running" && html`<${ProgressBar} label="Progress" fraction=${job.progress.fraction} />`}
  </span>`;
