import { createParser } from "eventsource-parser";

import { DiffuserveError } from "./errors.js";
import type { Responses } from "./operations.js";
import type { components } from "./schemas.js";
import type { ClientOptions, OperationId, RequestParts } from "./transport.js";
import { Transport, awayFor, now, pauseAfter, sleep, unlessAborted, within } from "./transport.js";

type Schemas = components["schemas"];
export type NewJob = Schemas["NewJobBody"];
export type Job = Schemas["JobResource"];
export type Estimate = Schemas["EstimateResource"];
export type JobPage = Schemas["JobPage"];
export type JobEvent = Schemas["EventResource"];
export type Artifact = Schemas["ArtifactResource"];
export type Model = Schemas["ModelResource"];
export type UploadedFile = Schemas["FileResource"];
export type Batch = Schemas["BatchResource"];
export type BatchResult = Schemas["BatchResult"];
export type { ClientOptions, OperationId, RequestParts, Responses };
export type { components } from "./schemas.js";
export type { FieldError } from "./errors.js";
export { DiffuserveError };

/** An image, a clip or a sound of a job, with its content. */
export interface GeneratedFile {
  artifact: Artifact;
  content: Blob;
  job: Job;
}

export interface CallOptions {
  signal?: AbortSignal;
}

export interface SubmitOptions extends CallOptions {
  /** The same key and job give the same job for a day; by default each call has its own. */
  idempotencyKey?: string;
}

const FINAL = new Set(["succeeded", "failed", "canceled", "expired"]);
const POLL_SECONDS = 25; // below the usual limits of proxies
const CANCEL_SECONDS = 5; // a call that is given up ends soon, whether or not the server is there
const READ_SECONDS = 600; // an upload is judged, and a batch checked, before the response
const SILENCE_SECONDS = 60; // a stream has a ping every 15 s

/** Client of a server: submits jobs, follows them and fetches their files. */
export class Client {
  readonly #http: Transport;

  constructor(options: ClientOptions = {}) {
    this.#http = new Transport(options);
  }

  /**
   * Submit a job, wait for it, and return its images, clips or sounds. Throw the job's error if it fails, and
   * the signal's reason, which cancels the job.
   */
  async generate(job: NewJob, options: SubmitOptions = {}): Promise<GeneratedFile[]> {
    const { signal, ...others } = options;
    signal?.throwIfAborted();
    const submission = this.submit(job, others);
    try {
      const { id } = await unlessAborted(submission, signal);
      return await this.fetch(await this.wait(id, options), options);
    } catch (error) {
      if (signal?.aborted) await within(CANCEL_SECONDS, submission.then(({ id }) => this.cancel(id))).catch(() => {});
      throw error;
    }
  }

  /** Check a job and predict its cost, without submitting it. */
  estimate(job: NewJob, options: CallOptions = {}): Promise<Estimate> {
    return this.request("estimateJob", { json: job, signal: options.signal });
  }

  /** Submit a job, which the server does once, whether or not anybody waits for it. */
  submit(job: NewJob, options: SubmitOptions = {}): Promise<Job> {
    return this.request("submitJob", { json: job, headers: idempotent(options), signal: options.signal });
  }

  /** Submit a job, and yield its events until the final one. */
  async *subscribe(job: NewJob, options: SubmitOptions = {}): AsyncGenerator<JobEvent> {
    const { id } = await this.submit(job, options);
    yield* this.stream(id, options);
  }

  /** Yield a job's events until the final one; a stream that breaks goes on after the last event. */
  async *stream(jobId: string, options: CallOptions & { after?: number } = {}): AsyncGenerator<JobEvent> {
    let after = options.after ?? 0;
    let heard = now();
    while (true) {
      let pause: number | undefined;
      try {
        for await (const event of this.#events(jobId, after, options.signal)) {
          heard = now();
          if (event === undefined) continue;
          after = event.seq ?? after;
          yield event;
          if (FINAL.has(event.type)) return;
        }
        throw new TypeError("it closed the stream of events");
      } catch (error) {
        pause = pauseAfter(error);
        if (pause === undefined || options.signal?.aborted || now() + pause - heard > this.#http.patienceSeconds)
          throw awayFor(this.#http.server, error);
      }
      await sleep(pause + 0.2 + Math.random() / 2);
    }
  }

  /** Return a job once it is final. */
  async wait(jobId: string, options: CallOptions = {}): Promise<Job> {
    while (true) {
      const job = await this.request("getJob", {
        path: { job_id: jobId },
        query: { wait: POLL_SECONDS },
        waitSeconds: POLL_SECONDS,
        signal: options.signal,
      });
      if (FINAL.has(job.status)) return job;
    }
  }

  get(jobId: string, options: CallOptions = {}): Promise<Job> {
    return this.request("getJob", { path: { job_id: jobId }, signal: options.signal });
  }

  /** Return a page of jobs, newest first; `after` is the `next` of the previous page. */
  list(query: RequestParts["query"] = {}, options: CallOptions = {}): Promise<JobPage> {
    return this.request("listJobs", { query, signal: options.signal });
  }

  /** Cancel a queued job at once; a running one stops after its current step. */
  cancel(jobId: string, options: CallOptions = {}): Promise<Job> {
    return this.request("cancelJob", { path: { job_id: jobId }, signal: options.signal });
  }

  /** Return the files that a job asked for. Throw the job's error if it has none. */
  async fetch(job: Job, options: CallOptions = {}): Promise<GeneratedFile[]> {
    if (!job.result) throw errorOfJob(job);
    const wanted = job.result.artifacts.filter(({ role }) => ["image", "video", "audio"].includes(role));
    return Promise.all(wanted.map((artifact) => this.#fetchOne(job, artifact, options)));
  }

  async models(options: CallOptions = {}): Promise<Model[]> {
    return (await this.request("listModels", { signal: options.signal })).data;
  }

  /** Upload an image, whose id jobs name; the same one again is the same file. */
  upload(image: Blob, options: CallOptions & { filename?: string } = {}): Promise<UploadedFile> {
    return this.request("uploadFile", {
      body: image,
      headers: { "content-type": image.type || "image/png" },
      query: { filename: options.filename ?? "image" },
      waitSeconds: READ_SECONDS,
      signal: options.signal,
    });
  }

  /** Submit many jobs at once: prompts, or items with a `custom_id` and an `input`. */
  submitBatch(
    items: readonly (string | { custom_id: string; input: NewJob["input"] })[],
    options: SubmitOptions & { query?: RequestParts["query"] } = {},
  ): Promise<Batch> {
    const lines = items.map((item, number) =>
      JSON.stringify(typeof item === "string" ? { custom_id: `item-${number}`, input: { prompt: item } } : item),
    );
    const submitted = this.request("submitBatch", {
      body: `${lines.join("\n")}\n`,
      headers: { ...idempotent(options), "content-type": "application/jsonl" },
      query: options.query ?? {},
      waitSeconds: READ_SECONDS,
      signal: options.signal,
    });
    return submitted as Promise<Batch>; // what names a file, in OpenAI's way, is another
  }

  /** Return a batch once all of its items have ended. */
  async waitForBatch(batchId: string, options: CallOptions = {}): Promise<Batch> {
    while (true) {
      const batch = await this.request("getBatch", { path: { batch_id: batchId }, signal: options.signal });
      if (batch.finished_at !== null) return batch;
      await sleep(1);
    }
  }

  /** Return the results of the items that have ended, in the items' order. */
  async batchResults(batchId: string, options: CallOptions = {}): Promise<BatchResult[]> {
    const parts = { path: { batch_id: batchId }, signal: options.signal, waitSeconds: READ_SECONDS };
    const lines = await this.#http.send("getBatchResults", parts, (response) => response.text());
    return lines.split("\n").filter(Boolean).map((line) => JSON.parse(line) as BatchResult);
  }

  /** Return what any operation that is not of a file or a stream responds with, by its id in the OpenAPI document. */
  request<Id extends keyof Responses>(id: Id, parts: RequestParts = {}): Promise<Responses[Id]> {
    return this.#http.send(id, parts, async (response) =>
      response.status === 204 ? undefined : await response.json(),
    );
  }

  /** Yield events, and `undefined` for whatever else tells that the server is there. */
  async *#events(jobId: string, after: number, signal?: AbortSignal): AsyncGenerator<JobEvent | undefined> {
    const response = await this.#http.sendOnce("streamJobEvents", {
      path: { job_id: jobId },
      headers: { accept: "text/event-stream", "last-event-id": String(after) },
      isEndless: true,
      signal,
    });
    const arrived: JobEvent[] = [];
    const parser = createParser({ onEvent: ({ data }) => void arrived.push(JSON.parse(data) as JobEvent) });
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    try {
      while (true) {
        const { done, value } = await within(SILENCE_SECONDS, reader.read());
        if (done) return;
        parser.feed(value);
        yield undefined; // a ping alone
        yield* arrived.splice(0);
      }
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  }

  async #fetchOne(job: Job, artifact: Artifact, options: CallOptions): Promise<GeneratedFile> {
    const parts = {
      path: { job_id: job.id },
      query: { index: artifact.index },
      waitSeconds: READ_SECONDS,
      signal: options.signal,
    };
    const content = await this.#http.send("getJobResult", parts, (response) => response.blob());
    return { artifact, content, job };
  }
}

function idempotent(options: SubmitOptions): Record<string, string> {
  return { "idempotency-key": options.idempotencyKey ?? crypto.randomUUID() };
}

function errorOfJob(job: Job): DiffuserveError {
  const reason = job.error ? `: ${job.error.message} (${job.error.code})` : "";
  return new DiffuserveError(`job ${job.id} ${job.status}${reason}`, job.error?.code ?? "job_not_done");
}
