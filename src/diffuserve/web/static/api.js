// The server's API as the views use it: JSON requests, and streams of events that reconnect.
import { session } from "./session.js";
import { urlOf } from "./router.js";

// A refusal of the server. `problem` is its RFC 9457 body: code, detail, errors[] with `field` and `message`.
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the server responded with ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

// Send a request and return its JSON, null for an empty response. Raise ApiError.
export async function request(method, path, body, { signal, headers = {} } = {}) {
  const response = await fetch(urlOf(path), {
    method,
    signal,
    headers: { accept: "application/json", ...csrfHeaders(method), ...bodyHeaders(body), ...headers },
    body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
  });
  if (response.status === 204) return null;
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, content);
  return content;
}

function csrfHeaders(method) {
  const token = session.value?.csrf_token;
  return method === "GET" || !token ? {} : { "x-csrf-token": token };
}

const bodyHeaders = (body) =>
  body === undefined || body instanceof FormData ? {} : { "content-type": "application/json" };

// Follow a stream of server-sent events, and return what ends it. `handlers` maps types to functions of the
// event's data. The browser reconnects by itself while the server is away, and goes on from the last event.
export function follow(path, handlers, { onState = () => {} } = {}) {
  const source = new EventSource(urlOf(path));
  source.onopen = () => onState("open");
  source.onerror = () => onState(source.readyState === EventSource.CLOSED ? "closed" : "reconnecting");
  for (const [type, handle] of Object.entries(handlers)) {
    source.addEventListener(type, (event) => handle(JSON.parse(event.data), event));
  }
  return () => source.close();
}
