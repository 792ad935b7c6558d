/** The attempts at one call: until when they go on, and when the next one is due. */

import { setTimeout as sleep } from "node:timers/promises";
import { status as Code } from "@grpc/grpc-js";
import { errorOfCall, SlipstreamError } from "./errors.js";

const FIRST_DELAY_MS = 50;
const LONGEST_DELAY_MS = 2000;

/** Options of every call. */
export interface CallOptions {
  /** Milliseconds for the whole call, its retries included; for a reply, for the whole turn. */
  timeoutMs?: number | undefined;
  /** Ends the call when it is aborted; a reply's turn ends too. */
  signal?: AbortSignal | undefined;
}

/** The state that all calls of a client share. */
export interface Contact {
  /** Milliseconds for which a lost server is called again. */
  readonly reconnectMs: number;
  /** True once the server has answered. One that never answered may have a wrong address: it is
   * not called again. */
  reached: boolean;
}

/** Return whether the connection failed, or the server cannot serve now, rather than refuses. */
function isLost(error: SlipstreamError): boolean {
  return error.code === Code.UNAVAILABLE || (error.code === Code.CANCELLED && error.reason === "CANCELLED");
}

export class Attempts {
  /** Aborted when the caller gives up, or when time is up. */
  readonly signal: AbortSignal;
  /** The deadline for gRPC. */
  readonly deadline: number;
  readonly #contact: Contact;
  readonly #timeout: AbortSignal | undefined;
  #lostSince: number | undefined;
  #count = 0;

  constructor(contact: Contact, { timeoutMs = Infinity, signal }: CallOptions) {
    this.#contact = contact;
    this.deadline = Date.now() + timeoutMs;
    // A timer takes at most 2^31 - 1 ms.
    this.#timeout = timeoutMs < 2 ** 31 ? AbortSignal.timeout(timeoutMs) : undefined;
    this.signal = AbortSignal.any([signal, this.#timeout].filter((one) => one !== undefined));
  }

  /** True if an attempt was lost. It may have done its work. */
  get repeated(): boolean {
    return this.#count > 0;
  }

  /** Return what `work` gives, unless the signal is aborted before: that is then thrown. */
  async race<T>(work: Promise<T>): Promise<T> {
    work.catch(() => undefined); // nobody may be waiting for it any more when it fails
    this.signal.throwIfAborted();
    let abort: () => void;
    const aborted = new Promise<never>((_, reject) => {
      abort = () => reject(this.signal.reason);
      this.signal.addEventListener("abort", abort);
    });
    return Promise.race([work, aborted]).finally(() => this.signal.removeEventListener("abort", abort));
  }

  /** Note that the server has answered. */
  noteAnswer(): void {
    this.#contact.reached = true;
    this.#lostSince = undefined;
    this.#count = 0;
  }

  /** Call until there is an answer. Throws a SlipstreamError if there is none. */
  async run<T>(call: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        const answer = await this.race(call());
        this.noteAnswer();
        return answer;
      } catch (thrown) {
        await this.pause(thrown);
      }
    }
  }

  /**
   * Wait until the next attempt is due: twice as long each time, at least as long as the server
   * says, and partly random. Throws if there is no other attempt.
   */
  async pause(thrown: unknown): Promise<void> {
    if (this.signal.aborted) throw this.#interruption(thrown);
    const error = errorOfCall(thrown);
    if (!(error instanceof SlipstreamError)) throw error;
    if (error.reason !== Code[error.code]) this.#contact.reached = true; // only a server gives reasons
    if (!isLost(error)) throw error;
    const now = Date.now();
    this.#lostSince ??= now;
    const backoff = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#count) * (0.5 + 0.5 * Math.random());
    const delay = Math.max(backoff, error.retryAfterMs ?? 0);
    this.#count += 1;
    if (!this.#contact.reached || now + delay - this.#lostSince > this.#contact.reconnectMs) throw error;
    if (now + delay >= this.deadline) throw this.#late(error);
    try {
      await sleep(delay, undefined, { signal: this.signal });
    } catch {
      throw this.#interruption(error);
    }
  }

  /** Return the error of an aborted signal: the caller's own reason, or that time is up. */
  #interruption(cause: unknown): unknown {
    return this.#timeout?.aborted && this.signal.reason === this.#timeout.reason
      ? this.#late(cause)
      : this.signal.reason;
  }

  #late(cause: unknown): SlipstreamError {
    return new SlipstreamError(Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", "no answer in time", { cause });
  }
}
