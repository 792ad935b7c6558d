/** What a browser does: gRPC-Web through Envoy, by fetch, with the package's contract alone. */

import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { BadRequestSchema, ErrorInfoSchema, OrchestratorService } from "slipstream-llm/contract";
import { guardedClient, services } from "./services.js";

const { web } = services;

function browser(token: string) {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  return createClient(OrchestratorService, createGrpcWebTransport({ baseUrl: web!.url, interceptors: [authorize] }));
}

function preflight(origin: string): Promise<Response> {
  return fetch(`${web!.url}/${OrchestratorService.typeName}/Generate`, {
    method: "OPTIONS",
    headers: {
      origin,
      "access-control-request-method": "POST",
      "access-control-request-headers": "authorization,content-type,x-grpc-web,x-user-agent",
    },
  });
}

async function refusal(work: Promise<unknown>): Promise<ConnectError> {
  try {
    await work;
  } catch (error) {
    return ConnectError.from(error);
  }
  throw new Error("was not refused");
}

describe("through Envoy", { skip: web ? false : "Envoy is not here" }, () => {
  const { token } = services.guarded;

  test("a session's turn has the text that gRPC has for its seed", async () => {
    const settings = { sampling: { seed: 7n, temperature: 1.5 }, maxTokenCount: 20 };
    const direct = guardedClient();
    const expected = await direct.generate([{ role: "user", content: "x" }], { settings }).result();
    direct.close();
    const client = browser(token);
    const { session } = await client.createSession({ requestId: crypto.randomUUID(), settings });
    let text = "";
    for await (const { event } of client.sendMessage({ sessionId: session!.id, content: "x" })) {
      if (event?.event.case === "delta" || event?.event.case === "finished") text += event.event.value.text;
    }
    assert.equal(text, expected.text);
    assert.notEqual(text, "");
    await client.deleteSession({ sessionId: session!.id });
  });

  test("tokens come while the turn runs, and it can be cancelled", async () => {
    const client = browser(token);
    const speculation = { mode: { case: "off", value: {} } } as const;
    const settings = { maxTokenCount: 8000, ignoreEndTokens: true, speculation };
    let sessionId = "";
    let cancelled = false;
    let reason;
    for await (const { event } of client.generate({ prompt: { case: "text", value: "x" }, settings })) {
      const what = event!.event;
      if (what.case === "started") sessionId = what.value.sessionId;
      if (what.case === "delta" && !cancelled) {
        cancelled = true;
        await client.cancelTurn({ sessionId, turn: event!.turn });
      }
      if (what.case === "finished") reason = what.value.finishReason;
    }
    assert.equal(reason, 5); // CANCELLED
  });

  test("errors keep their details", async () => {
    const stranger = await refusal(browser("wrong").getServerInfo({}));
    assert.equal(stranger.code, Code.Unauthenticated);
    assert.equal(stranger.findDetails(ErrorInfoSchema)[0]?.reason, "UNAUTHENTICATED");
    const wrong = await refusal(browser(token).createSession({ settings: { maxTokenCount: 0 } }));
    const [violations] = wrong.findDetails(BadRequestSchema);
    assert.equal(violations?.fieldViolations[0]?.field, "settings.max_token_count");
  });

  test("pages of the named origin may call, and no others", async () => {
    const allowed = await preflight(web!.origin);
    assert.equal(allowed.headers.get("access-control-allow-origin"), web!.origin);
    const headers = allowed.headers.get("access-control-allow-headers")?.split(",") ?? [];
    for (const header of ["authorization", "content-type", "x-grpc-web"]) assert.ok(headers.includes(header), header);
    const other = await preflight("https://other.example");
    assert.equal(other.headers.get("access-control-allow-origin"), null);
  });

  test("no other service can be reached", async () => {
    const headers = { "content-type": "application/grpc-web+proto", "x-grpc-web": "1" };
    const answer = await fetch(`${web!.url}/grpc.health.v1.Health/Check`, { method: "POST", headers, body: "" });
    assert.equal(answer.status, 404);
  });
});
