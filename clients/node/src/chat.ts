/** A session of many turns over one stream, which is opened again when it is lost. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { randomUUID } from "node:crypto";
import type { Attempts, CallOptions } from "./attempts.js";
import type { Connection, Duplex } from "./connection.js";
import {
  type ChatRequestSchema,
  ChatRequestSchema as Request,
  type ChatResponse,
  type ChatResponseSchema,
  OrchestratorService,
  type StartChat,
  type StartChatSchema,
  type UserMessage,
  type UserMessageSchema,
} from "./contract/slipstream/v1/orchestrator_pb.js";
import type { Session } from "./contract/slipstream/v1/session_pb.js";
import { errorOfStatus } from "./errors.js";
import { type ConversationMessage, messagesOf } from "./messages.js";
import { type ChoiceEvent, type EventStream, Reply } from "./reply.js";
import { streamLost, Turn } from "./turn.js";

/** A new session's system message, settings and so on; or the `sessionId` of one to resume. */
export type ChatOptions = CallOptions & Omit<Exclude<MessageInitShape<typeof StartChatSchema>, StartChat>, "$typeName">;

/** Settings of one message's turn. */
export type SendOptions = CallOptions & { requestId?: string } & Omit<
    Exclude<MessageInitShape<typeof UserMessageSchema>, UserMessage>,
    "$typeName" | "content" | "messages" | "afterTokenCount"
  >;

export class Chat {
  readonly #connection: Connection;
  readonly #options: ChatOptions;
  readonly #startId = randomUUID();
  #session: Session | undefined;
  #stream: ChatStream | undefined;
  #last: Reply | undefined;

  /** @internal */
  constructor(connection: Connection, options: ChatOptions) {
    this.#connection = connection;
    this.#options = options;
  }

  /** The id by which the session is resumed. */
  get sessionId(): string {
    return this.#session!.id;
  }

  /** The session as it was when its stream was last opened. */
  get session(): Session {
    return this.#session!;
  }

  /**
   * Send a user message, or the messages that the answer follows, such as a tool's result. A
   * reply of this chat that was not read to its end is closed first. With the `requestId` of an
   * earlier message, and the same content, the reply is that message's turn.
   */
  send(content: string | readonly ConversationMessage[], options: SendOptions = {}): Reply {
    const { requestId = randomUUID(), timeoutMs, signal, ...settings } = options;
    const said = typeof content === "string" ? { content } : { messages: messagesOf(content) };
    const previous = this.#last;
    const open = async ([turn]: readonly Turn[], attempts: Attempts): Promise<EventStream> => {
      if (previous?.requestId !== requestId) await previous?.close();
      const stream = await this.open(attempts);
      const value = { ...settings, ...said, afterTokenCount: turn!.tokenCount };
      stream.write({ requestId, command: { case: "message", value } });
      return new MessageEvents(stream, requestId);
    };
    const limits = { timeoutMs, signal };
    this.#last = new Reply(this.#connection, { open }, limits, [new Turn(this.sessionId)], requestId);
    return this.#last;
  }

  /** Close the reply that was not read to its end, and the stream. The session stays. */
  async close(): Promise<void> {
    await this.#last?.close();
    this.#stream?.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Return the stream that is open, or open another one. @internal */
  async open(attempts: Attempts): Promise<ChatStream> {
    if (this.#stream?.alive) return this.#stream;
    const { timeoutMs, signal, ...start } = this.#options;
    // A stream that follows another one resumes its session, with the same settings over it if it
    // was resumed from the start.
    const resumed = this.#session && this.#options.sessionId === undefined;
    const value = resumed ? { sessionId: this.#session!.id } : start;
    const stream = new ChatStream(this.#connection.duplex(OrchestratorService.method.chat));
    try {
      stream.write({ requestId: this.#startId, command: { case: "start", value } });
      this.#session = await attempts.race(stream.opened());
      this.#stream = stream;
      return stream;
    } catch (thrown) {
      stream.drop();
      throw thrown;
    }
  }
}

/** One Chat stream. */
class ChatStream {
  alive = true;
  readonly #call: Duplex<typeof ChatRequestSchema, typeof ChatResponseSchema>;
  readonly #responses: AsyncIterator<ChatResponse>;

  constructor(call: Duplex<typeof ChatRequestSchema, typeof ChatResponseSchema>) {
    this.#call = call;
    this.#responses = call[Symbol.asyncIterator]() as AsyncIterator<ChatResponse>;
    for (const event of ["error", "end", "close"]) call.on(event, () => (this.alive = false));
  }

  write(request: MessageInitShape<typeof ChatRequestSchema>): void {
    this.#call.write(create(Request, request));
  }

  /** Return what comes next. Throws if the server closes the chat, or has ended the stream. */
  async next(): Promise<ChatResponse["event"]> {
    const { done, value } = await this.#responses.next();
    if (done) throw streamLost("the server ended the chat's stream");
    if (value.event.case === "closing") throw errorOfStatus(value.event.value.error);
    return value.event;
  }

  /** Return the session, once the server has opened it. */
  async opened(): Promise<Session> {
    for (;;) {
      const event = await this.next();
      if (event.case === "failed") throw errorOfStatus(event.value.error);
      if (event.case === "opened" && event.value.session) return event.value.session;
    }
  }

  /** Send nothing more. */
  end(): void {
    this.alive = false;
    this.#call.end();
    this.#call.resume();
  }

  /** Forget the stream, whatever is under way in it. */
  drop(): void {
    this.alive = false;
    this.#call.cancel();
  }
}

/** The events of one message's turn. A chat runs one turn at a time. */
class MessageEvents implements EventStream {
  readonly #stream: ChatStream;
  readonly #requestId: string;
  #turn = 0;

  constructor(stream: ChatStream, requestId: string) {
    this.#stream = stream;
    this.#requestId = requestId;
  }

  async next(): Promise<ChoiceEvent> {
    for (;;) {
      const event = await this.#stream.next();
      if (event.case === "failed" && event.value.requestId === this.#requestId) throw errorOfStatus(event.value.error);
      if (event.case !== "turn") continue;
      const { turn, event: what } = event.value;
      if (what.case === "started" && what.value.requestId === this.#requestId) this.#turn = turn;
      if (turn === this.#turn) return { choiceIndex: 0, event: event.value };
    }
  }

  release(ended: boolean): void {
    if (!ended) this.#stream.drop(); // what remains of this turn in it would be the next reply's
  }
}
