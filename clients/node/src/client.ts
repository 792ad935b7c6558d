/** A connection to an orchestrator, and the requests that it takes. */

import type { DescMessage, DescMethodUnary, MessageInitShape, MessageShape } from "@bufbuild/protobuf";
import { randomUUID } from "node:crypto";
import type { Attempts, CallOptions } from "./attempts.js";
import { Chat, type ChatOptions } from "./chat.js";
import { type ClientOptions, Connection, type Responses } from "./connection.js";
import {
  type GenerateRequest,
  type GenerateRequestSchema,
  type GenerateResponseSchema,
  OrchestratorService,
  type WatchTurnResponseSchema,
} from "./contract/slipstream/v1/orchestrator_pb.js";
import { type ConversationMessage, messagesOf } from "./messages.js";
import { type ChoiceEvent, type EventStream, Reply } from "./reply.js";
import { Turn } from "./turn.js";

/** What to answer: raw text, token ids, or a conversation, to which the chat template is applied. */
export type Prompt = string | readonly number[] | readonly ConversationMessage[];

type GenerateInit = Exclude<MessageInitShape<typeof GenerateRequestSchema>, GenerateRequest>;

/** Settings of a generation, and the fields of GenerateRequest beside its prompt. */
export type GenerateOptions = CallOptions & Omit<GenerateInit, "$typeName" | "prompt" | "afterTokenCounts">;

export class Client {
  readonly #connection: Connection;

  /** Prepare a connection to `host:port`. The first call makes it. */
  constructor(address = "127.0.0.1:50051", options: ClientOptions = {}) {
    this.#connection = new Connection(address, options);
  }

  /**
   * Begin a new session, or resume the one with `sessionId`, over one stream in both directions.
   * Where that is lost it is opened again, and the reply goes on.
   */
  async chat(options: ChatOptions = {}): Promise<Chat> {
    const chat = new Chat(this.#connection, options);
    const attempts = this.#connection.attempts(options);
    await attempts.run(() => chat.open(attempts));
    return chat;
  }

  /** Answer a prompt without a session. The same `requestId` again gives the same answer. */
  generate(prompt: Prompt, options: GenerateOptions = {}): Reply {
    const { timeoutMs, signal, requestId = randomUUID(), ...fields } = options;
    const request = { ...fields, requestId, prompt: promptOf(prompt) };
    const open = async (turns: readonly Turn[], attempts: Attempts): Promise<EventStream> => {
      const afterTokenCounts = turns.map((turn) => turn.tokenCount);
      const { generate } = OrchestratorService.method;
      return new CallEvents(this.#connection.stream(generate, { ...request, afterTokenCounts }, attempts.deadline));
    };
    const turns = Array.from({ length: Math.max(1, options.choiceCount ?? 1) }, () => new Turn());
    return new Reply(this.#connection, { open }, { timeoutMs, signal }, turns, requestId);
  }

  /** Watch a turn, running or ended, from a position. Leaving the reply does not end the turn. */
  watch(sessionId: string, turn: number, options: CallOptions & { afterTokenCount?: number } = {}): Reply {
    const open = async ([watched]: readonly Turn[], attempts: Attempts): Promise<EventStream> => {
      const request = { sessionId, turn, afterTokenCount: watched!.tokenCount };
      return new CallEvents(this.#connection.stream(OrchestratorService.method.watchTurn, request, attempts.deadline));
    };
    const watched = new Turn(sessionId, turn, options.afterTokenCount);
    return new Reply(this.#connection, { open }, options, [watched], "", false);
  }

  /** End a turn early. A turn that has ended stays as it is. */
  async cancel(sessionId: string, turn: number, options: CallOptions = {}): Promise<void> {
    await this.call(OrchestratorService.method.cancelTurn, { sessionId, turn }, options);
  }

  /**
   * Call any method of `OrchestratorService.method` that has one answer. Where the connection is
   * lost it is called again: give requests that change something a `requestId`.
   */
  call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    return this.#connection.unary(method, request, this.#connection.attempts(options));
  }

  /** Close the connection. Close replies and chats before. */
  close(): void {
    this.#connection.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** The events of a call with a stream of its own. */
class CallEvents implements EventStream {
  readonly #call: Responses<typeof GenerateResponseSchema | typeof WatchTurnResponseSchema>;
  readonly #responses: AsyncIterator<MessageShape<typeof GenerateResponseSchema | typeof WatchTurnResponseSchema>>;

  constructor(call: Responses<typeof GenerateResponseSchema | typeof WatchTurnResponseSchema>) {
    this.#call = call;
    this.#responses = call[Symbol.asyncIterator]();
  }

  async next(): Promise<ChoiceEvent | undefined> {
    const { done, value } = await this.#responses.next();
    if (done || !value.event) return undefined;
    return { event: value.event, choiceIndex: "choiceIndex" in value ? value.choiceIndex : 0 };
  }

  release(ended: boolean): void {
    // After the turn's end the server still sends the call's status.
    if (ended) this.#call.resume();
    else this.#call.cancel();
  }
}

function promptOf(prompt: Prompt): NonNullable<GenerateInit["prompt"]> {
  if (typeof prompt === "string") return { case: "text", value: prompt };
  if (isTokens(prompt)) return { case: "tokens", value: { tokenIds: [...prompt] } };
  return { case: "conversation", value: { messages: messagesOf(prompt) } };
}

function isTokens(prompt: readonly number[] | readonly ConversationMessage[]): prompt is readonly number[] {
  return typeof prompt[0] === "number";
}
