/** Answers as they come, over one stream after another. */

import { status as Code } from "@grpc/grpc-js";
import type { Attempts, CallOptions } from "./attempts.js";
import type { Connection } from "./connection.js";
import { OrchestratorService } from "./contract/slipstream/v1/orchestrator_pb.js";
import type { TurnEvent } from "./contract/slipstream/v1/turn_pb.js";
import { SlipstreamError } from "./errors.js";
import { type Delta, type Result, streamLost, Turn } from "./turn.js";

/** Milliseconds that leaving a reply may take. */
const FAREWELL_MS = 5000;

/** An event of one of the answers. */
export interface ChoiceEvent {
  choiceIndex: number;
  event: TurnEvent;
}

/** A stream of a reply's events. */
export interface EventStream {
  /** Return the next event, undefined at the stream's end. */
  next(): Promise<ChoiceEvent | undefined>;
  /** Take no more events. `ended`: the last one has come. */
  release(ended: boolean): void;
}

/** Where a reply's events come from. */
export interface Source {
  /** Begin a stream that goes on where these turns are. */
  open(turns: readonly Turn[], attempts: Attempts): Promise<EventStream>;
}

/**
 * One turn's answer, or several answers to one prompt. Iterate over it once, or await `result()`.
 * A lost connection is made again, and each token comes once. Leaving the iteration early, an
 * aborted signal and a deadline end the turn.
 */
export class Reply implements AsyncIterable<Delta> {
  readonly #connection: Connection;
  readonly #source: Source;
  readonly #attempts: Attempts;
  readonly #owned: boolean;
  readonly #turns: Turn[];
  readonly #deltas: AsyncGenerator<Delta, void, undefined>;
  #opening: Promise<EventStream>;
  #cancelling = false;
  #reading = false;
  readonly #closing = new AbortController();
  #failure: unknown;
  #left: Promise<void> | undefined;

  /** @internal */
  constructor(
    connection: Connection,
    source: Source,
    { timeoutMs, signal }: CallOptions,
    turns: Turn[],
    /** The caller's name for the request. The same one again gives the same turn. */
    readonly requestId: string,
    /** Leaving the reply ends the turn. A reply that only watches leaves it running. */
    owned = true,
  ) {
    this.#connection = connection;
    this.#source = source;
    const signals = [signal, this.#closing.signal].filter((one) => one !== undefined);
    this.#attempts = connection.attempts({ timeoutMs, signal: AbortSignal.any(signals) });
    this.#turns = turns;
    this.#owned = owned;
    this.#opening = this.#open(this.#attempts);
    this.#deltas = this.#read();
  }

  /** The answers so far, one for each choice. */
  get results(): Result[] {
    return this.#turns.map((turn) => turn.result);
  }

  [Symbol.asyncIterator](): AsyncIterator<Delta> {
    return this.#deltas;
  }

  /** Read to the end and return the answer: the first one, if there are several. */
  async result(): Promise<Result> {
    for await (const _ of this);
    if (this.#failure) throw this.#failure;
    return this.results[0]!;
  }

  /**
   * End the turn early. The iteration goes on to the turn's last events, and its finish reason is
   * then CANCELLED. The promise waits for the server only if the turn has begun.
   */
  async cancel(): Promise<void> {
    this.#cancelling = true;
    await this.#cancelTurns(this.#connection.attempts({}));
  }

  /** Read no further. The turn ends, unless the reply only watches it. */
  async close(): Promise<void> {
    if (!this.#ended) this.#failure ??= new SlipstreamError(Code.CANCELLED, "REPLY_CLOSED", "the reply was closed");
    this.#closing.abort(this.#failure);
    if (!this.#reading)
      this.#opening.then(
        (stream) => stream.release(false),
        () => undefined,
      );
    await this.#deltas.return();
    await (this.#left ??= this.#leave());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  get #ended(): boolean {
    return this.#turns.every((turn) => turn.ended);
  }

  #open(attempts: Attempts): Promise<EventStream> {
    for (const turn of this.#turns) turn.beginStream();
    const opening = this.#source.open(this.#turns, attempts);
    opening.catch(() => undefined); // its reader gets the error, once there is one
    return opening;
  }

  async *#read(): AsyncGenerator<Delta, void, undefined> {
    this.#reading = true;
    let final = false;
    try {
      while (!this.#ended) {
        try {
          yield* this.#readStream();
        } catch (thrown) {
          await this.#attempts.pause(thrown);
          this.#opening = this.#open(this.#attempts);
        }
      }
      const failed = this.#turns.find((turn) => turn.error)?.error;
      if (failed) throw failed;
    } catch (thrown) {
      this.#failure = thrown;
      const late = thrown instanceof SlipstreamError && thrown.code === Code.DEADLINE_EXCEEDED;
      final = !late && !this.#attempts.signal.aborted; // there is no turn, or no server to tell
      throw thrown;
    } finally {
      if (!final) await (this.#left ??= this.#leave());
    }
  }

  async *#readStream(): AsyncGenerator<Delta, void, undefined> {
    const stream = await this.#attempts.race(this.#opening);
    try {
      while (!this.#ended) {
        const next = await this.#attempts.race(stream.next());
        if (!next) throw streamLost("the server ended the stream before the turn's end");
        this.#attempts.noteAnswer();
        const delta = this.#turns[next.choiceIndex]?.take(next.event);
        if (this.#cancelling) await this.#cancelTurns(this.#attempts);
        if (delta) yield { ...delta, choiceIndex: next.choiceIndex };
      }
    } finally {
      stream.release(this.#ended);
    }
  }

  /** Cancel the turns that are known and still run. */
  async #cancelTurns(attempts: Attempts): Promise<void> {
    const running = this.#turns.filter((turn) => turn.known && !turn.ended && !turn.cancelled);
    for (const turn of running) {
      const { sessionId, turn: number } = turn.result;
      turn.cancelled = true;
      try {
        await this.#connection.unary(OrchestratorService.method.cancelTurn, { sessionId, turn: number }, attempts);
      } catch (thrown) {
        turn.cancelled = false;
        throw thrown;
      }
    }
  }

  /** End the turns at the server if they are this reply's and still run. Throws nothing. */
  async #leave(): Promise<void> {
    const attempts = this.#connection.attempts({ timeoutMs: FAREWELL_MS });
    try {
      if (!this.#owned || this.#ended) return;
      if (!this.#turns.every((turn) => turn.known)) await this.#learn(attempts);
      await this.#cancelTurns(attempts);
    } catch {
      // the server cannot be told: it ends the turn itself, at its limit of tokens
    }
  }

  /** Learn from the same request again which turns it began. */
  async #learn(attempts: Attempts): Promise<void> {
    const stream = await attempts.race(this.#open(attempts));
    try {
      while (!this.#turns.every((turn) => turn.known)) {
        const next = await attempts.race(stream.next());
        if (!next) return;
        this.#turns[next.choiceIndex]?.take(next.event);
      }
    } finally {
      stream.release(false);
    }
  }
}
