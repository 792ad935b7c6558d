/** One turn, from the events received over any number of streams: each token and character once. */

import { status as Code } from "@grpc/grpc-js";
import type { TokenLogprobs } from "./contract/slipstream/v1/sampling_pb.js";
import {
  FinishReason,
  type TokenOrigin,
  type TurnDelta,
  type TurnEvent,
  type TurnFailed,
  type TurnFinished,
  type TurnStarted,
} from "./contract/slipstream/v1/turn_pb.js";
import { errorOfStatus, SlipstreamError } from "./errors.js";

/** Tokens, and the text that they made certain. */
export interface Delta {
  /** Which answer it belongs to, if several were asked for. */
  choiceIndex: number;
  /** Text may lag behind tokens, and may be empty. */
  text: string;
  tokenIds: number[];
  /** Tokens of the turn before these. */
  tokenOffset: number;
  /** One for each token, if asked for. */
  logprobs: TokenLogprobs[];
  /** With the first token, if asked for: the prompt's, from its second token on. */
  promptLogprobs: TokenLogprobs[];
  /** One for each token, if asked for. */
  tokenOrigins: TokenOrigin[];
}

/** An answer as far as it has come. */
export interface Result {
  sessionId: string;
  turn: number;
  /** The seed in use: the one asked for, or the one that the server drew. */
  seed: bigint;
  promptTokenCount: number;
  text: string;
  tokenIds: number[];
  logprobs: TokenLogprobs[];
  promptLogprobs: TokenLogprobs[];
  /** Why the turn ended. Undefined while it runs, and if it failed. */
  finishReason: keyof typeof FinishReason | undefined;
  /** The turn's last event: usage, statistics and times. */
  end: TurnFinished | TurnFailed | undefined;
}

export class Turn {
  readonly result: Result;
  /** Tokens received: the position from which to watch on. */
  tokenCount: number;
  error: SlipstreamError | undefined;
  /** True once the server was told to end the turn. */
  cancelled = false;
  /** Length of the text at each number of tokens: where the text of a stream that begins there belongs. */
  readonly #textAt: Map<number, number>;
  #textPosition: number | undefined;

  constructor(sessionId = "", turn = 0, afterTokenCount = 0) {
    this.tokenCount = afterTokenCount;
    this.#textAt = new Map([[afterTokenCount, 0]]);
    this.result = {
      sessionId,
      turn,
      seed: 0n,
      promptTokenCount: 0,
      text: "",
      tokenIds: [],
      logprobs: [],
      promptLogprobs: [],
      finishReason: undefined,
      end: undefined,
    };
  }

  /** True if the turn can be cancelled by its number. */
  get known(): boolean {
    return this.result.sessionId !== "" && this.result.turn !== 0;
  }

  get ended(): boolean {
    return this.result.end !== undefined;
  }

  /** Note that the next events are another stream's. */
  beginStream(): void {
    this.#textPosition = undefined;
  }

  /** Take an event, and return what is new in it. Throws if events before it are missing. */
  take({ turn, event }: TurnEvent): Omit<Delta, "choiceIndex"> | undefined {
    switch (event.case) {
      case "started":
        this.#start(turn, event.value);
        return undefined;
      case "delta":
        return this.#add(event.value);
      case "finished":
        this.result.finishReason = FinishReason[event.value.finishReason] as keyof typeof FinishReason;
        return this.#end(event.value);
      case "failed":
        this.error = errorOfStatus(event.value.error);
        return this.#end(event.value);
      default:
        return undefined;
    }
  }

  #start(turn: number, started: TurnStarted): void {
    const { result } = this;
    if (this.known && (result.sessionId !== started.sessionId || result.turn !== turn)) {
      throw new SlipstreamError(
        Code.ABORTED,
        "TURN_LOST",
        "the server has lost the turn and begun another one: send the request again",
      );
    }
    result.sessionId = started.sessionId;
    result.turn = turn;
    result.seed = started.seed;
    result.promptTokenCount = started.promptTokenCount;
  }

  #add(message: TurnDelta): Omit<Delta, "choiceIndex"> | undefined {
    const position = this.#textPosition ?? this.#textAt.get(message.tokenOffset);
    const seen = this.tokenCount - message.tokenOffset;
    if (seen < 0 || position === undefined) {
      throw streamLost(`tokens ${this.tokenCount} to ${message.tokenOffset} of the turn are missing`);
    }
    const { result } = this;
    const delta = {
      text: message.text.slice(Math.max(0, result.text.length - position)),
      tokenIds: message.tokenIds.slice(seen),
      tokenOffset: this.tokenCount,
      logprobs: message.logprobs.slice(seen),
      promptLogprobs: seen > 0 ? [] : message.promptLogprobs,
      tokenOrigins: message.tokenOrigins.slice(seen),
    };
    this.#textPosition = position + message.text.length;
    this.tokenCount += delta.tokenIds.length;
    result.text += delta.text;
    result.tokenIds.push(...delta.tokenIds);
    result.logprobs.push(...delta.logprobs);
    result.promptLogprobs.push(...delta.promptLogprobs);
    this.#textAt.set(this.tokenCount, result.text.length);
    return delta.text !== "" || delta.tokenIds.length > 0 ? delta : undefined;
  }

  #end(end: TurnFinished | TurnFailed): Omit<Delta, "choiceIndex"> | undefined {
    this.result.end = end;
    if (end.text === "") return undefined;
    this.result.text += end.text;
    const nothing = { tokenIds: [], logprobs: [], promptLogprobs: [], tokenOrigins: [] };
    return { ...nothing, text: end.text, tokenOffset: this.tokenCount };
  }
}

/** Return the error of a stream that ended, or has a gap, before its turn's end. Nothing is lost. */
export function streamLost(message: string): SlipstreamError {
  return new SlipstreamError(Code.UNAVAILABLE, "STREAM_LOST", message);
}
