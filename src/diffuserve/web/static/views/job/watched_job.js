// One job, kept up to date: the job itself, its stored events, its live progress and its newest previews.
import { signal } from "../../vendor/ui.js";
import { follow, request } from "../../api.js";
import { FINAL, isFinal, newer } from "../../components/job_state.js";
import { withPreview } from "../../components/previews.js";
import { kept } from "../gallery/feed.js";

const STORED = ["queued", "fell_back", "running", "denoised", "preempted", "interrupted", "requeued", "canceling", ...FINAL];

export class WatchedJob {
  constructor(id) {
    this.id = id;
    this.job = signal(null);
    this.events = signal([]); // stored ones, in their order
    this.previews = signal({}); // by the place of the image
    this.isLive = signal(false); // its clip can be played while it is decoded
    this.error = signal(null);
    this.stop = () => {};
  }

  async open() {
    await this.read();
    if (this.job.value) this.#follow();
  }

  // Read the job; one that is gone is told as the error of the page.
  async read() {
    try {
      const read = kept(await request("GET", `v1/jobs/${this.id}`));
      this.job.value = newer(this.job.value, read);
      this.error.value = null;
    } catch (error) {
      if (error.status === 404) this.stop();
      if (error.status === 404 || !this.job.value) this.error.value = error;
    }
  }

  // Follow it again from what an action has made of it, as after an operator has queued it again.
  again(job) {
    this.stop();
    this.job.value = kept(job);
    this.events.value = [];
    this.#forgetPreviews();
    return this.open();
  }

  #follow() {
    const handlers = Object.fromEntries(STORED.map((type) => [type, (event) => this.#add(event)]));
    handlers.progress = ({ data }) => this.#advance(data);
    handlers.preview = ({ data }) => {
      this.previews.value = withPreview(this.previews.value, data);
    };
    handlers.live = ({ data }) => {
      this.isLive.value = data.num_parts > 0;
    };
    this.stop = follow(`v1/jobs/${this.id}/events`, handlers, { onState: (state) => this.#changedState(state) });
  }

  #add(event) {
    if (this.events.value.some(({ seq }) => seq === event.seq)) return;
    this.events.value = [...this.events.value, event];
    if (event.type === "requeued") this.#forgetPreviews();
    if (!isFinal(this.job.value) || event.type === "requeued") this.read();
  }

  // Another attempt draws anew.
  #forgetPreviews() {
    this.previews.value = {};
    this.isLive.value = false;
  }

  #advance({ phase, step, total, fraction, frames = 0, num_frames = 0 }) {
    const job = this.job.value;
    if (isFinal(job)) return;
    this.job.value = { ...job, phase, progress: { ...job.progress, step, total, fraction, frames, num_frames } };
  }

  // The server ends the stream after the last event, and the browser would ask for more. A stream that is
  // refused may be that of a job which was deleted: reading the job tells.
  #changedState(state) {
    const newest = this.events.value.at(-1);
    const isOver = state !== "open" && newest && FINAL.includes(newest.type);
    if (isOver) this.stop();
    if ((isOver || state === "closed") && !isFinal(this.job.value)) this.read();
  }
}
