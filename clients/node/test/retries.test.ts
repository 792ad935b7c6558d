import { anyPack } from "@bufbuild/protobuf/wkt";
import { create, toBinary } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { Client, OrchestratorService } from "slipstream-llm";
import { ErrorInfoSchema, RetryInfoSchema, StatusSchema } from "slipstream-llm/contract";

/** A server that refuses as it is told, and then answers. */
let server: grpc.Server;
let client: Client;
let refusals: { code: grpc.status; reason: string; retryMs?: number }[];
let callCount: number;
const { getStatus } = OrchestratorService.method;

beforeEach(async () => {
  [server, callCount, refusals] = [new grpc.Server(), 0, []];
  const definition = {
    path: `/${OrchestratorService.typeName}/${getStatus.name}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: (bytes: Buffer) => bytes,
    requestDeserialize: (bytes: Buffer) => bytes,
    responseSerialize: (bytes: Buffer) => bytes,
    responseDeserialize: (bytes: Buffer) => bytes,
  } as const;
  const answer: grpc.handleUnaryCall<Buffer, Buffer> = (_, callback) => {
    callCount += 1;
    const refusal = refusals.shift();
    if (refusal) callback(refused(refusal));
    else callback(null, Buffer.alloc(0));
  };
  server.addService({ getStatus: definition }, { getStatus: answer });
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    ),
  );
  client = new Client(`127.0.0.1:${port}`, { reconnectMs: 2000 });
});

afterEach(() => {
  client.close();
  server.forceShutdown();
});

function refused({ code, reason, retryMs }: (typeof refusals)[0]): grpc.StatusObject & Error {
  const details = [anyPack(ErrorInfoSchema, create(ErrorInfoSchema, { reason, domain: "slipstream" }))];
  if (retryMs !== undefined) {
    const retryDelay = { seconds: 0n, nanos: retryMs * 1e6 };
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay })));
  }
  const metadata = new grpc.Metadata();
  const status = create(StatusSchema, { code, message: "no", details });
  metadata.set("grpc-status-details-bin", Buffer.from(toBinary(StatusSchema, status)));
  return Object.assign(new Error("no"), { code, details: "no", metadata });
}

test("a server that cannot serve now is called again, not before it says", async () => {
  refusals = [
    { code: grpc.status.UNAVAILABLE, reason: "NOT_READY", retryMs: 300 },
    { code: grpc.status.UNAVAILABLE, reason: "SESSION_MOVED" },
  ];
  const begun = performance.now();
  await client.call(getStatus, {});
  assert.equal(callCount, 3);
  assert.ok(performance.now() - begun >= 300);
});

test("overload is told to the caller, with the time to wait", async () => {
  refusals = [{ code: grpc.status.RESOURCE_EXHAUSTED, reason: "OVERLOADED", retryMs: 1500 }];
  await assert.rejects(client.call(getStatus, {}), { reason: "OVERLOADED", retryable: true, retryAfterMs: 1500 });
  assert.equal(callCount, 1);
});

test("a refusal is final", async () => {
  refusals = [{ code: grpc.status.FAILED_PRECONDITION, reason: "NO_CHAT_TEMPLATE" }];
  await assert.rejects(client.call(getStatus, {}), { reason: "NO_CHAT_TEMPLATE", retryable: false });
  assert.equal(callCount, 1);
});

test("retries end with the deadline", async () => {
  refusals = Array(99).fill({ code: grpc.status.UNAVAILABLE, reason: "NOT_READY", retryMs: 50 });
  await assert.rejects(client.call(getStatus, {}, { timeoutMs: 400 }), { reason: "DEADLINE_EXCEEDED" });
});

test("an aborted signal ends the retries", async () => {
  refusals = Array(99).fill({ code: grpc.status.UNAVAILABLE, reason: "NOT_READY", retryMs: 50 });
  const signal = AbortSignal.timeout(200);
  await assert.rejects(client.call(getStatus, {}, { signal }), { name: "TimeoutError" });
});

test("a server that was never reached is not called again", async () => {
  const nobody = new Client("127.0.0.1:1", { timeoutMs: 15_000 });
  await assert.rejects(nobody.call(getStatus, {}), { reason: "UNAVAILABLE", retryable: true });
  nobody.close();
});
