import { DiffuserveError, errorOf } from "./errors.js";
import { OPERATIONS } from "./operations.js";

export type OperationId = keyof typeof OPERATIONS;

export interface ClientOptions {
  /** URL of the server; by default `DIFFUSERVE_SERVER`, or this machine's port 8000. */
  server?: string;
  /** API key; by default `DIFFUSERVE_API_KEY`. Never give one to a browser. */
  apiKey?: string;
  /** Seconds for which a request is tried again while the server is away or asks to wait. */
  patienceSeconds?: number;
  /** Seconds after which one try without a response has failed. */
  timeoutSeconds?: number;
  fetch?: typeof fetch;
}

export interface RequestParts {
  path?: Record<string, string>;
  query?: Record<string, string | number | boolean | readonly string[] | undefined>;
  headers?: Record<string, string>;
  /** A value to send as JSON, or a body as it is. */
  json?: unknown;
  body?: Blob | string;
  signal?: AbortSignal | undefined;
  /** Seconds for which the server may delay the response, beyond the timeout. */
  waitSeconds?: number;
  /** The timeout is for the head of the response alone. */
  isEndless?: boolean;
}

const FIRST_PAUSE = 0.1;
const LONGEST_PAUSE = 5;

/** Sends requests by the ids of their operations, again while that may help: each is safe to repeat. */
export class Transport {
  readonly server: string;
  readonly patienceSeconds: number;
  readonly #timeoutSeconds: number;
  readonly #headers: Record<string, string>;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    const server = options.server ?? env("DIFFUSERVE_SERVER") ?? "http://127.0.0.1:8000";
    if (!/^https?:\/\//.test(server) || !URL.canParse(server))
      throw invalid("server", server, "is not a URL such as http://127.0.0.1:8000");
    this.server = server.replace(/\/+$/, "").replace(/\/v1$/, ""); // as OpenAI's clients have it
    const key = options.apiKey ?? env("DIFFUSERVE_API_KEY");
    this.#headers = key === undefined ? {} : { authorization: `Bearer ${key}` };
    this.patienceSeconds = options.patienceSeconds ?? 30;
    this.#timeoutSeconds = options.timeoutSeconds ?? 30;
    this.#fetch = options.fetch ?? ((...given) => fetch(...given));
  }

  /** Return what `read` makes of the response. Throw `DiffuserveError`, or the signal's reason. */
  async send<T>(id: OperationId, parts: RequestParts, read: (response: Response) => Promise<T>): Promise<T> {
    const deadline = now() + this.patienceSeconds;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        return await read(await this.sendOnce(id, parts));
      } catch (error) {
        const seconds = Math.max(pauseAfter(error) ?? Infinity, pause * (0.5 + Math.random() / 2));
        parts.signal?.throwIfAborted();
        if (now() + seconds > deadline) throw awayFor(this.server, error);
        await sleep(seconds);
      }
    }
  }

  /** Return the response to one try. Throw `DiffuserveError` for an error, and if there is none. */
  async sendOnce(id: OperationId, parts: RequestParts): Promise<Response> {
    const [method, template] = OPERATIONS[id];
    const seconds = this.#timeoutSeconds + (parts.waitSeconds ?? 0);
    const limits = [parts.signal, parts.isEndless ? undefined : AbortSignal.timeout(seconds * 1000)];
    const headers = { ...this.#headers, ...parts.headers };
    if (parts.json !== undefined) Object.assign(headers, { "content-type": "application/json" });
    const request = {
      method,
      headers,
      body: parts.json === undefined ? (parts.body ?? null) : JSON.stringify(parts.json),
      signal: AbortSignal.any(limits.filter((signal) => signal !== undefined)),
    };
    const response = await within(seconds, this.#reach(this.#url(template, parts), request));
    if (!response.ok) throw await errorOf(response);
    return response;
  }

  async #reach(url: string, request: RequestInit): Promise<Response> {
    try {
      return await this.#fetch(url, request);
    } catch (error) {
      throw awayFor(this.server, error);
    }
  }

  #url(template: string, parts: RequestParts): string {
    const path = template.replace(/{(\w+)}/g, (_, name: string) => segment(name, parts.path?.[name] ?? ""));
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parts.query ?? {}))
      for (const each of [value].flat()) if (each !== undefined) query.append(name, String(each));
    return `${this.server}${path}${query.size ? `?${query}` : ""}`;
  }
}

/** Return a name or an id as one segment of a path. Throw for what would lead to another resource. */
function segment(name: string, value: string): string {
  if (name.endsWith("_id") ? !/^[\w.:@-]*\w[\w.:@-]*$/.test(value) : /^\.{0,2}$/.test(value))
    throw invalid(name, value, "is no id, which has letters, digits and -_.:@ alone");
  return encodeURIComponent(value);
}

function invalid(field: string, value: string, remedy: string): DiffuserveError {
  const message = `${field}=${JSON.stringify(value)}: ${remedy}`;
  return new DiffuserveError(message, "invalid_params", undefined, undefined, undefined, [{ field, remedy }]);
}

/** Return the shortest pause before a retry in seconds, nothing for an error that no retry helps. */
export function pauseAfter(error: unknown): number | undefined {
  if (error instanceof DiffuserveError) return error.retryAfter;
  return error instanceof TypeError || isTimeout(error) ? 0 : undefined; // a body that was cut off
}

/** Return the error of a server that does not respond, in place of what `fetch` throws then. */
export function awayFor(server: string, error: unknown): unknown {
  if (!(error instanceof TypeError) && !isTimeout(error)) return error;
  const message = `${server} does not respond (${error})`;
  return new DiffuserveError(message, "server_unavailable", undefined, 0, { cause: error });
}

function isTimeout(error: unknown): boolean {
  return error instanceof DOMException && error.name === "TimeoutError";
}

/** Return what a promise gives within some seconds. Throw a `TimeoutError`. */
export async function within<T>(seconds: number, promise: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new DOMException(`nothing for ${seconds} s`, "TimeoutError")), seconds * 1000);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Return what a promise gives, unless the signal is aborted before. Throw the signal's reason. */
export async function unlessAborted<T>(promise: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (signal === undefined) return promise;
  let abort = () => {};
  const aborted = new Promise<never>((_, reject) => (abort = () => reject(signal.reason)));
  signal.addEventListener("abort", abort);
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

export function sleep(seconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

export function now(): number {
  return performance.now() / 1000;
}

function env(name: string): string | undefined {
  const { process } = globalThis as { process?: { env: Record<string, string | undefined> } };
  return process?.env[name];
}
