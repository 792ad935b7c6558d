/** A channel to one orchestrator: protobuf-es messages over grpc-js. */

import {
  create,
  type DescMessage,
  type DescMethodBiDiStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import { isIP } from "node:net";
import { Attempts, type CallOptions, type Contact } from "./attempts.js";
import { SlipstreamError } from "./errors.js";

/** Certificates in PEM. Without `ca` the system's authorities are believed. */
export interface TlsOptions {
  ca?: Buffer;
  cert?: Buffer;
  key?: Buffer;
}

export interface ClientOptions {
  /** The access token. It is sent over TLS, or to this machine, and nowhere else. */
  token?: string;
  /** TLS: `true`, or certificates. Left out: plaintext. */
  tls?: boolean | TlsOptions;
  /** Milliseconds for each call unless it says otherwise; for a reply, for the whole turn. */
  timeoutMs?: number;
  /** Milliseconds for which a lost server is called again: 30,000. One that was never reached is
   * not called again. */
  reconnectMs?: number;
  /** More options of grpc-js's channel. */
  channelOptions?: grpc.ChannelOptions;
}

const MAX_MESSAGE_BYTES = 64 * 2 ** 20;

const CHANNEL_OPTIONS: grpc.ChannelOptions = {
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
  "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.enable_http_proxy": 0,
  "grpc.use_local_subchannel_pool": 1,
};

/** A stream of a server's messages. */
export type Responses<O extends DescMessage> = grpc.ClientReadableStream<MessageShape<O>>;
/** A stream in both directions. */
export type Duplex<I extends DescMessage, O extends DescMessage> = grpc.ClientDuplexStream<
  MessageShape<I>,
  MessageShape<O>
>;

export class Connection {
  readonly #client: grpc.Client;
  readonly #metadata = new grpc.Metadata();
  readonly #contact: Contact;
  readonly #timeoutMs: number | undefined;

  constructor(address: string, options: ClientOptions) {
    if (options.token !== undefined) {
      if (!options.tls && !staysHere(address)) {
        throw new SlipstreamError(
          grpc.status.FAILED_PRECONDITION,
          "PLAINTEXT",
          `the token would go to ${address} in plaintext, where others can read it: use TLS, or a loopback address`,
        );
      }
      this.#metadata.set("authorization", `Bearer ${options.token}`);
    }
    this.#client = new grpc.Client(address, credentials(options.tls), {
      ...CHANNEL_OPTIONS,
      ...options.channelOptions,
    });
    this.#contact = { reconnectMs: options.reconnectMs ?? 30_000, reached: false };
    this.#timeoutMs = options.timeoutMs;
  }

  attempts(options: CallOptions): Attempts {
    return new Attempts(this.#contact, { timeoutMs: this.#timeoutMs, ...options });
  }

  /** Call a method with one answer. A lost call is repeated. */
  unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    attempts: Attempts,
  ): Promise<MessageShape<O>> {
    const message = create(method.input, request);
    return attempts.run(
      () =>
        new Promise((resolve, reject) => {
          const { path, write, read } = wire(method);
          const call = this.#client.makeUnaryRequest(
            path,
            write,
            read,
            message,
            this.#metadata,
            { deadline: attempts.deadline },
            (error, answer) => {
              attempts.signal.removeEventListener("abort", abort);
              if (error) reject(error);
              else resolve(answer!);
            },
          );
          const abort = () => call.cancel();
          attempts.signal.addEventListener("abort", abort);
        }),
    );
  }

  /** Begin a stream of answers. */
  stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
    deadline: number,
  ): Responses<O> {
    const { path, write, read } = wire(method);
    const message = create(method.input, request);
    return heard(this.#client.makeServerStreamRequest(path, write, read, message, this.#metadata, { deadline }));
  }

  /** Begin a stream in both directions. */
  duplex<I extends DescMessage, O extends DescMessage>(method: DescMethodBiDiStreaming<I, O>): Duplex<I, O> {
    const { path, write, read } = wire(method);
    return heard(this.#client.makeBidiStreamRequest(path, write, read, this.#metadata));
  }

  close(): void {
    this.#client.close();
  }
}

/** Its error reaches the reader. Without a listener, it would end the process before that. */
function heard<T extends grpc.ClientReadableStream<unknown>>(call: T): T {
  call.on("error", () => undefined);
  return call;
}

function wire<I extends DescMessage, O extends DescMessage>(
  method: DescMethodUnary<I, O> | DescMethodServerStreaming<I, O> | DescMethodBiDiStreaming<I, O>,
) {
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    write: (message: MessageShape<I>) => Buffer.from(toBinary(method.input, message)),
    read: (bytes: Buffer) => fromBinary(method.output, bytes),
  };
}

function credentials(tls: boolean | TlsOptions | undefined): grpc.ChannelCredentials {
  if (!tls) return grpc.credentials.createInsecure();
  const { ca, cert, key } = tls === true ? {} : tls;
  return grpc.credentials.createSsl(ca, key, cert);
}

/** Return true if an address is this machine's: loopback, or a socket file. Any host name but
 * localhost may be another machine's. */
function staysHere(address: string): boolean {
  if (address.startsWith("unix:")) return true;
  const host = address
    .replace(/^(dns|ipv4|ipv6):(\/\/[^/]*\/)?/, "")
    .replace(/:\d+$/, "")
    .replace(/^\[(.*)\]$/, "$1");
  return host.toLowerCase() === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}
