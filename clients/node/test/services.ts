/** What the tests talk to: tests/system/test_node_client.py starts it and says where it is. */

import net from "node:net";
import { Client, type ClientOptions } from "slipstream-llm";

export interface Services {
  /** An orchestrator with the embedded pair. */
  address: string;
  /** An orchestrator with a simulated model whose turns last, which asks for tokens, behind TLS. */
  guarded: { address: string; ca: string; token: string };
  /** Envoy with deploy/envoy/grpc-web.yaml in front of the guarded one. Absent where there is no Envoy. */
  web: { url: string; origin: string } | null;
  /** What Python's client got. */
  expected: { chat: string[]; choices: string[]; largeSeed: { seed: string; text: string } };
}

const said = process.env["SLIPSTREAM_TEST_SERVICES"];
if (!said) throw new Error("SLIPSTREAM_TEST_SERVICES is not set: run tests/system/test_node_client.py");
export const services = JSON.parse(said) as Services;

/** TLS asks for a name, and the tests' certificate has it. */
export const BY_NAME = { "grpc.ssl_target_name_override": "localhost" };

/** A client of the guarded orchestrator. */
export function guardedClient(options: ClientOptions = {}): Client {
  const { address, ca, token } = services.guarded;
  return new Client(address, { token, tls: { ca: Buffer.from(ca) }, channelOptions: BY_NAME, ...options });
}

/** A TCP proxy whose connections can be cut. */
export class Proxy {
  connectionCount = 0;
  readonly #sockets = new Set<net.Socket>();
  readonly #server: net.Server;

  constructor(upstream: string) {
    const [host, port] = upstream.split(":") as [string, string];
    this.#server = net.createServer((near) => {
      this.connectionCount += 1;
      const far = net.connect(Number(port), host);
      for (const [socket, other] of [
        [near, far],
        [far, near],
      ] as const) {
        this.#sockets.add(socket);
        socket.on("error", () => undefined);
        socket.on("close", () => {
          this.#sockets.delete(socket);
          other.destroy();
        });
        socket.pipe(other);
      }
    });
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return `127.0.0.1:${(this.#server.address() as net.AddressInfo).port}`;
  }

  /** Cut every connection, now. */
  cut(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  close(): void {
    this.#server.close();
    this.cut();
  }
}
