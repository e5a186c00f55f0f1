// The jobs that the gallery shows: pages by cursor, and a look at the newest ones every two seconds.
import { batch, signal } from "../../vendor/ui.js";
import { readChanged, request } from "../../api.js";
import { isFinal } from "../../components/job_state.js";

const PAGE = 50;
const MOST_LOOKED_AT = 10; // jobs below the first page that are still going on, per look

export class Feed {
  constructor(filters) {
    this.filters = filters;
    this.jobs = signal([]);
    this.next = signal(null); // the cursor; null at the end
    this.isLoading = signal(true);
    this.error = signal(null);
    this.hasLoaded = false;
    this.head = null;
    this.numRemovals = 0; // so that a response from before a removal is dropped
  }

  // Load the first page, or the one after the last job.
  async loadMore() {
    if (this.hasLoaded && (this.isLoading.value || !this.next.value)) return;
    this.isLoading.value = true;
    try {
      const page = await this.#page(this.hasLoaded ? this.next.value : null);
      batch(() => {
        const known = new Set(this.jobs.value.map(({ id }) => id));
        this.jobs.value = [...this.jobs.value, ...page.data.filter(({ id }) => !known.has(id)).map(kept)];
        this.next.value = page.next;
        this.error.value = null;
      });
      this.hasLoaded = true;
    } catch (error) {
      this.error.value = error;
    }
    this.isLoading.value = false;
  }

  // Look for new jobs and for what has changed. What goes wrong is tried again at the next look.
  async look() {
    if (!this.hasLoaded || this.isLoading.value) return;
    const removals = this.numRemovals;
    const head = await this.#head();
    const others = await this.#changed(head);
    if (removals !== this.numRemovals) return;
    const jobs = this.#merged(head, others);
    const { value: shown } = this.jobs;
    if (jobs.length !== shown.length || jobs.some((job, place) => job !== shown[place])) this.jobs.value = jobs;
  }

  // Take deleted jobs out.
  remove(ids) {
    this.numRemovals += 1;
    this.jobs.value = this.jobs.value.filter(({ id }) => !ids.has(id));
  }

  #page(after) {
    return request("GET", this.#path(after));
  }

  // The first page, which is sent only when something on it has changed.
  async #head() {
    const changed = await readChanged(this.#path(null), this.head?.etag);
    this.head = changed ?? this.head;
    return this.head.content;
  }

  #path(after) {
    const query = new URLSearchParams(this.filters);
    query.set("limit", PAGE);
    if (after) query.set("after", after);
    return `v1/jobs?${query}`;
  }

  // Jobs that the first page does not reach and that are still going on are read one by one.
  async #changed(head) {
    const going = this.jobs.value.filter((job) => !isFinal(job) && isBelow(job, head)).slice(0, MOST_LOOKED_AT);
    const unread = (job) => (error) => (error.status === 404 ? { ...job, isGone: true } : job);
    const read = (job) => request("GET", `v1/jobs/${job.id}`).catch(unread(job));
    return Promise.all(going.map(read));
  }

  #merged(head, others) {
    const known = new Map(this.jobs.value.map((job) => [job.id, job]));
    const isGap = known.size > 0 && head.next && !head.data.some(({ id }) => known.has(id));
    if (isGap) { // more new jobs than a page holds: begin anew
      this.next.value = head.next;
      return head.data.map(kept);
    }
    const changed = new Map(others.map((job) => [job.id, job]));
    const below = this.jobs.value.filter((job) => isBelow(job, head)).map((job) => changed.get(job.id) ?? job);
    const jobs = [...head.data, ...below.filter((job) => !job.isGone)];
    return jobs.map((job) => unchanged(known.get(job.id), job) ?? kept(job));
  }
}

const isBelow = (job, head) => head.next !== null && job.id < head.next;

// Every response signs its URLs anew. One is kept for a while, so that no image is fetched or shown twice.
const KEPT_MS = 600_000; // they are valid for longer, but not for as long as a page may be open
const urls = new Map();
export function kept(job) {
  for (const artifact of job.result?.artifacts ?? []) {
    const key = `${job.id}/${artifact.name}/${artifact.sha256}`;
    const known = urls.get(key);
    if (known && Date.now() - known.at < KEPT_MS) artifact.url = known.url;
    else urls.set(key, { url: artifact.url, at: Date.now() });
  }
  return job;
}

// Return the URL of a job's file as it is signed now; null if the file is not there any more.
export async function renewedUrl(job, name) {
  const read = await request("GET", `v1/jobs/${job.id}`).catch(() => null);
  return read?.result?.artifacts.find((artifact) => artifact.name === name)?.url ?? null;
}

// Return the known job if nothing in it has changed, so that its tile is not drawn again.
function unchanged(known, job) {
  const state = ({ status, phase, progress, attempt }) => JSON.stringify([status, phase, progress, attempt]);
  return known && state(known) === state(job) ? known : null;
}
