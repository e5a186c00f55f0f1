/** What is wrong with a field, and what to do. */
export interface FieldError {
  field: string;
  remedy: string;
}

/** An error that the server told, or that it cannot be reached; `code` is stable and meant for programs. */
export class DiffuserveError extends Error {
  constructor(
    message: string,
    readonly code: string,
    /** HTTP status; none without a response, and for a job that failed. */
    readonly status?: number,
    /** Seconds after which to try again; none if no retry helps. */
    readonly retryAfter?: number,
    options?: ErrorOptions,
    /** Fields that are wrong, if the request is. */
    readonly errors: readonly FieldError[] = [],
    /** Id under which the server's log has the request. */
    readonly requestId?: string,
  ) {
    super(message, options);
    this.name = "DiffuserveError";
  }
}

const RETRIED = new Set([408, 425, 429, 500, 502, 503, 504]);

/** Return the error that a response stands for: a problem after RFC 9457, or whatever a proxy sent. */
export async function errorOf(response: Response): Promise<DiffuserveError> {
  const text = await response.text();
  const told = problemIn(text);
  const message = told["detail"] ?? `the server responded with ${response.status}: ${text.slice(0, 200)}`;
  const mayPass = RETRIED.has(response.status) && told["retryable"] !== false;
  const asked = Number(response.headers.get("retry-after"));
  return new DiffuserveError(
    String(message),
    String(told["code"] ?? "server_refused"),
    response.status,
    mayPass ? Math.max(asked || 0, 0) : undefined,
    undefined,
    fieldErrorsIn(told),
    response.headers.get("x-request-id") ?? undefined,
  );
}

function fieldErrorsIn(told: Record<string, unknown>): FieldError[] {
  const errors = (told["errors"] ?? []) as { field: string; message: string }[];
  return errors.map(({ field, message }) => ({ field, remedy: message }));
}

function problemIn(text: string): Record<string, unknown> {
  try {
    const told: unknown = JSON.parse(text);
    return typeof told === "object" && told !== null ? (told as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
