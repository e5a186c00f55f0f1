// The server's API as the views use it: JSON requests, and streams of events that reconnect.
import { lookForServer } from "./connection.js";
import { endedSession, session } from "./session.js";
import { urlOf } from "./router.js";

const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 15_000;

// A refusal of the server. `problem` is its RFC 9457 body: code, detail, errors[] with `field` and `message`.
export class ApiError extends Error {
  constructor(status, problem, retryAfter = null) {
    super(problem.detail ?? `the server responded with ${status}`);
    this.status = status;
    this.problem = problem;
    this.retryAfter = retryAfter; // seconds, where the server says when to try again
  }
}

// No response at all: the server, or the way to it, is away. The frame tells, and looks for it.
export class ServerAway extends Error {
  constructor() {
    super("the server cannot be reached");
    this.name = "ServerAway";
  }
}

// A response that did not arrive whole: the server has done what was asked.
export class ConnectionCut extends Error {
  constructor() {
    super("the connection was cut before all of the response had arrived");
    this.name = "ConnectionCut";
  }
}

// Send a request and return its JSON, null for an empty response. Raise ApiError, ServerAway or ConnectionCut.
export async function request(method, path, body, { signal, headers = {} } = {}) {
  const response = await send(urlOf(path), {
    method,
    signal,
    headers: { accept: "application/json", ...csrfHeaders(method), ...bodyHeaders(body), ...headers },
    body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
  });
  return response.status === 204 ? null : contentOf(response);
}

// Read what has changed since the response with `etag`: return { content, etag }, null if nothing has.
export async function readChanged(path, etag) {
  const headers = { accept: "application/json", ...(etag && { "if-none-match": etag }) };
  const response = await send(urlOf(path), { headers, cache: "no-store" });
  if (response.status === 304) return null;
  return { content: await contentOf(response), etag: response.headers.get("etag") };
}

async function contentOf(response) {
  if (response.ok) return whole(response);
  const content = await response.json().catch(() => ({}));
  if (response.status === 401) endedSession();
  const retryAfter = response.headers.get("retry-after");
  throw new ApiError(response.status, content, retryAfter && Number(retryAfter));
}

async function whole(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ConnectionCut();
  }
}

async function send(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lookForServer();
    throw new ServerAway();
  }
}

function csrfHeaders(method) {
  const token = session.value?.csrf_token;
  return method === "GET" || !token ? {} : { "x-csrf-token": token };
}

const bodyHeaders = (body) =>
  body === undefined || body instanceof FormData ? {} : { "content-type": "application/json" };

// Follow a stream of server-sent events, and return what ends it. `handlers` maps types to functions of the
// event's data. The browser reconnects by itself while the server is away, and goes on from the last event;
// where it gives up, because a proxy or the server refused the stream, another one begins, ever more rarely.
// `onState` gets "open", "reconnecting" and "closed", which is followed by another attempt.
export function follow(path, handlers, { onState = () => {} } = {}) {
  let source = null;
  let timer = null;
  let pause = FIRST_RETRY_MS;
  const open = () => {
    source = new EventSource(urlOf(path));
    source.onopen = () => {
      pause = FIRST_RETRY_MS;
      onState("open");
    };
    source.onerror = () => {
      lookForServer();
      const isClosed = source.readyState === EventSource.CLOSED;
      if (isClosed) {
        timer = setTimeout(open, pause);
        pause = Math.min(2 * pause, LAST_RETRY_MS);
      }
      onState(isClosed ? "closed" : "reconnecting");
    };
    for (const [type, handle] of Object.entries(handlers)) {
      source.addEventListener(type, (event) => handle(JSON.parse(event.data), event));
    }
  };
  open();
  return () => {
    clearTimeout(timer);
    source.close();
  };
}
