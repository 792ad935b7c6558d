/** Requests to the gateway that served the page, with the access token if there is one. */

import { parseEvents } from "./events";

const TOKEN_KEY = "slipstream.token";

/** An error that the gateway answers, or that no answer came (status 0). */
export class HttpError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
    readonly retryAfterSeconds = 0,
  ) {
    super(message);
  }

  /** True if the same request may succeed a little later. */
  get isLoss(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

export function accessToken(): string {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function keepAccessToken(token: string): void {
  if (token === "") sessionStorage.removeItem(TOKEN_KEY);
  else sessionStorage.setItem(TOKEN_KEY, token);
}

async function send(method: string, path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = {};
  const token = accessToken();
  if (token !== "") headers["authorization"] = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  try {
    const content = body === undefined ? null : JSON.stringify(body);
    response = await fetch(`/slipstream/v1${path}`, { method, headers, body: content, signal: signal ?? null });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new HttpError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<HttpError> {
  const retryAfter = Number(response.headers.get("retry-after") ?? 0);
  try {
    const { error } = (await response.json()) as { error: { message: string; code: string | null } };
    return new HttpError(response.status, error.message, error.code, retryAfter);
  } catch {
    return new HttpError(response.status, `The server answers with status ${response.status}.`, null, retryAfter);
  }
}

/** Return the body of an answer. HttpError. */
export async function call<Body>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Body> {
  return (await (await send(method, path, body, signal)).json()) as Body;
}

/** Yield the events of a stream. HttpError also if the stream is lost before its end. */
export async function* stream<Event>(
  method: string,
  path: string,
  body: unknown,
  signal: AbortSignal,
): AsyncGenerator<Event> {
  const response = await send(method, path, body, signal);
  let ended = false;
  try {
    for await (const data of parseEvents(response.body!)) {
      if (data === "[DONE]") ended = true;
      else yield eventOf<Event>(data);
    }
  } catch (error) {
    if (signal.aborted || error instanceof HttpError) throw error;
    throw new HttpError(0, "The connection was lost.");
  }
  if (!ended) throw new HttpError(0, "The connection was lost.");
}

function eventOf<Event>(data: string): Event {
  const event = JSON.parse(data) as Event & { error?: { message: string; code: string | null; type: string } };
  if (event.error !== undefined) {
    const status = event.error.type === "unavailable_error" ? 503 : 500;
    throw new HttpError(status, event.error.message, event.error.code);
  }
  return event;
}
