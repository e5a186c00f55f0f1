// Jobs with the same prompt, or of the same batch, as thumbnails.
import { html, useEffect, useState } from "../../vendor/ui.js";
import { request } from "../../api.js";
import { kept } from "../gallery/feed.js";
import { pictureOf, promptOf, stateOf } from "../gallery/job_words.js";

const MOST = 12;
const MOST_PAGES = 4; // each looks at a part of the jobs

export function Siblings({ job }) {
  return html`
    <${Row} job=${job} title="Same prompt" name="prompt_of" value=${job.id} />
    ${job.batch_id && html`<${Row} job=${job} title="Same batch" name="batch_id" value=${job.batch_id} />`}`;
}

function Row({ job, title, name, value }) {
  const [jobs, setJobs] = useState([]);
  useEffect(() => {
    let isOver = false;
    found(name, value, job.id, () => isOver).then((list) => isOver || setJobs(list), () => {});
    return () => {
      isOver = true;
    };
  }, [job.id, name, value, job.status]);
  if (!jobs.length) return null;
  return html`
    <section class="job-siblings" aria-label=${title}>
      <h2>${title} <small><a data-view href=${`gallery?${new URLSearchParams({ [name]: value })}`}>Show all</a></small></h2>
      <ul>${jobs.map((sibling) => html`<${Thumb} key=${sibling.id} job=${sibling} />`)}</ul>
    </section>`;
}

function Thumb({ job }) {
  const image = pictureOf(job);
  return html`
    <li><a data-view href=${`gallery/${job.id}`} aria-label=${`${promptOf(job)}, seed ${job.input.seed}`}>
      ${image ? html`<img src=${image.url} alt="" loading="lazy" />` : html`<span>${stateOf(job)}</span>`}
    </a></li>`;
}

async function found(name, value, ownId, isOver) {
  const jobs = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES && jobs.length < MOST && !isOver(); page += 1) {
    const query = new URLSearchParams({ [name]: value, limit: MOST + 1, ...(after && { after }) });
    const { data, next } = await request("GET", `v1/jobs?${query}`);
    jobs.push(...data.filter(({ id }) => id !== ownId).map(kept));
    after = next;
    if (!after) break;
  }
  return jobs.slice(0, MOST);
}
