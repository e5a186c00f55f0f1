// Jobs that this tab has submitted: each run is one press of a button, with one job or, of variations,
// several.
import { batch, signal } from "../../vendor/ui.js";
import { follow, request } from "../../api.js";
import { FINAL, isFinal, newer } from "../../components/job_state.js";
import { withPreview } from "../../components/previews.js";

const KEPT = "diffuserve.runs";
const MOST_KEPT = 12;
const MOST_STREAMS = 4; // a browser has six connections to a server, and images and requests need some
const POLL_MS = 1500;
const LOGGED = ["fell_back", "running", "denoised", "preempted", "interrupted", "requeued", "canceling"];

export const runs = signal([]); // newest first: { key, body, ids }
export const watched = signal({}); // by job id: { job, previews, isLive, problem }

let numStreams = 0;
let owner; // the tenant whose runs these are

// Show the runs of a tenant: whoever signs in next in this tab sees none of them.
export function openRuns(tenantId) {
  if (owner !== undefined && owner !== tenantId) {
    batch(() => {
      runs.value = [];
      watched.value = {};
    });
    keep();
  }
  owner = tenantId;
}

// Submit each body as a job, as one run. Raise as `request` does if the first does not succeed.
export async function submit(bodies) {
  const jobs = [];
  for (const body of bodies) {
    try {
      jobs.push(await submitOnce(body));
    } catch (error) {
      if (!jobs.length) throw error;
      break; // the others run; how many there are is seen
    }
  }
  batch(() => {
    jobs.forEach((job) => note(job.id, { job, submittedAt: Date.now() }));
    runs.value = [{ key: jobs[0].id, body: bodies[0], ids: jobs.map((job) => job.id) }, ...runs.value];
  });
  keep();
  jobs.forEach((job) => watch(job.id));
}

// Submit a job. If its response is cut it is found again by its key, which makes no second one.
async function submitOnce(body) {
  const key = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0"));
  const send = () => request("POST", "v1/jobs", body, { headers: { "idempotency-key": key.join("") } });
  return send().catch((error) => {
    if (error.name !== "ConnectionCut") throw error;
    return send();
  });
}

// Find the runs of this tab again after it was loaded anew.
export async function restoreRuns() {
  if (runs.value.length) return;
  const kept = read();
  const ids = kept.flatMap((run) => run.ids);
  const found = await Promise.all(ids.map((id) => request("GET", `v1/jobs/${id}`).catch(() => null)));
  const jobs = new Map(found.filter(Boolean).map((job) => [job.id, job]));
  if (runs.value.length) return; // submitted meanwhile
  batch(() => {
    jobs.forEach((job) => note(job.id, { job }));
    runs.value = kept
      .map((run) => ({ ...run, ids: run.ids.filter((id) => jobs.has(id)) }))
      .filter((run) => run.ids.length);
  });
  jobs.forEach((job) => isFinal(job) || watch(job.id));
}

export async function cancel(id) {
  note(id, { isCanceling: true });
  try {
    note(id, { job: await request("POST", `v1/jobs/${id}/cancel`) });
  } catch (error) {
    note(id, { isCanceling: false, problem: error.message });
  }
}

export function dismiss(run) {
  runs.value = runs.value.filter((other) => other.key !== run.key);
  keep();
}

function note(id, change) {
  if (!watched.value[id] && !change.job) return; // forgotten meanwhile
  watched.value = { ...watched.value, [id]: { ...watched.value[id], ...change } };
}

const jobOf = (id) => watched.value[id]?.job;
const isOver = (id) => !jobOf(id) || isFinal(jobOf(id));

// Follow a job by its events. While all streams are taken, or one was refused, it is asked for now and then.
async function watch(id) {
  while (!isOver(id)) {
    if (numStreams < MOST_STREAMS) await stream(id);
    if (isOver(id)) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    if (!isOver(id)) await refresh(id);
  }
}

// Return once the job's stream has ended.
function stream(id) {
  numStreams += 1;
  return new Promise((resolve) => {
    let isOpen = true;
    const end = () => {
      if (isOpen) numStreams -= 1;
      isOpen = false;
      clearInterval(asking);
      stop();
      resolve();
    };
    const ended = () => {
      stop(); // or the browser would connect again, since the server closes the stream now
      refresh(id).then(end);
    };
    const handlers = {
      ...Object.fromEntries(LOGGED.map((type) => [type, () => refresh(id)])),
      ...Object.fromEntries(FINAL.map((type) => [type, ended])),
      progress: ({ data }) => noteProgress(id, data),
      requeued: () => {
        note(id, { previews: {}, isLive: false }); // it begins anew
        refresh(id);
      },
      preview: ({ data }) => note(id, { previews: withPreview(watched.value[id]?.previews, data) }),
      live: ({ data }) => note(id, { isLive: data.num_parts > 0 }),
    };
    const onState = (state) => {
      note(id, { isAway: state === "reconnecting" });
      if (state === "closed") end();
    };
    const stop = follow(`v1/jobs/${id}/events`, handlers, { onState });
    const asking = setInterval(() => jobOf(id)?.status === "queued" && refresh(id), POLL_MS); // for its place
  });
}

function noteProgress(id, { phase, ...progress }) {
  const job = jobOf(id);
  if (isOver(id)) return;
  const begun = job.status === "queued" ? { status: "running", attempt: job.attempt + 1, queue: null } : {};
  note(id, { job: { ...job, ...begun, phase, progress: { ...job.progress, ...progress } } });
}

// Read a job again. One that was deleted leaves its run. What the stream tells meanwhile may be newer.
async function refresh(id) {
  const asked = jobOf(id);
  try {
    const read = await request("GET", `v1/jobs/${id}`);
    const known = jobOf(id);
    const isOld = read.status === "queued" && known !== asked;
    note(id, { job: isOld ? known : newer(known, read), isAway: false });
  } catch (error) {
    if (error.status === 404) forget(id);
    else note(id, { isAway: true });
  }
}

function forget(id) {
  const { [id]: _, ...others } = watched.value;
  batch(() => {
    watched.value = others;
    runs.value = runs.value
      .map((run) => ({ ...run, ids: run.ids.filter((other) => other !== id) }))
      .filter((run) => run.ids.length);
  });
  keep();
}

function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(runs.value.slice(0, MOST_KEPT)));
  } catch {
    /* a browser may refuse its storage */
  }
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? [];
  } catch {
    return [];
  }
}
