import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client, type Delta, OrchestratorService, type Reply, SlipstreamError } from "slipstream-llm";
import { BY_NAME, guardedClient, Proxy, services } from "./services.js";

const QUESTIONS = ["What does os.path.join do?", "And os.path.split?", "What is len?"];
const SAMPLED = { sampling: { seed: 7n, temperature: 1.5 }, maxTokenCount: 40 };
/** Of the simulated model: a turn that goes on until something ends it. */
const LASTING = {
  maxTokenCount: 8000,
  ignoreEndTokens: true,
  speculation: { mode: { case: "off", value: {} } },
} as const;

async function failure(work: Promise<unknown>): Promise<SlipstreamError> {
  try {
    await work;
  } catch (error) {
    assert.ok(error instanceof SlipstreamError, String(error));
    return error;
  }
  throw new Error("did not fail");
}

async function firstOf(reply: Reply): Promise<Delta> {
  for (;;) {
    const { value, done } = await reply[Symbol.asyncIterator]().next();
    assert.ok(!done, "the reply ended");
    if (value.tokenIds.length > 0) return value;
  }
}

describe("with the embedded pair", () => {
  let client: Client;
  before(() => void (client = new Client(services.address)));
  after(() => client.close());

  test("a chat of three turns has the text that Python's client gets for its seed", async () => {
    await using chat = await client.chat({ settings: SAMPLED });
    const texts = [];
    for (const question of QUESTIONS) {
      let text = "";
      for await (const delta of chat.send(question)) text += delta.text;
      texts.push(text);
    }
    assert.deepEqual(texts, services.expected.chat);
  });

  test("a chat is resumed by its id, and knows what was said", async () => {
    const first = await client.chat({ settings: SAMPLED });
    const { text } = await first.send(QUESTIONS[0]!).result();
    await first.close();
    await using second = await client.chat({ sessionId: first.sessionId });
    assert.equal(second.session.turnCount, 1);
    assert.equal(text, services.expected.chat[0]);
    const reply = second.send([{ role: "user", content: QUESTIONS[1]! }]);
    assert.equal((await reply.result()).text, services.expected.chat[1]);
  });

  test("several answers to a conversation are Python's", async () => {
    const reply = client.generate([{ role: "user", content: QUESTIONS[0]! }], {
      settings: SAMPLED,
      choiceCount: 2,
    });
    const streamed = ["", ""];
    for await (const delta of reply) streamed[delta.choiceIndex] += delta.text;
    assert.deepEqual(streamed, services.expected.choices);
    assert.deepEqual(
      reply.results.map((result) => result.text),
      streamed,
    );
  });

  test("a seed above 2^53 keeps its last digits", async () => {
    const { seed, text } = services.expected.largeSeed;
    const settings = { sampling: { seed: BigInt(seed), temperature: 1.5 }, maxTokenCount: 40 };
    const result = await client.generate([{ role: "user", content: QUESTIONS[0]! }], { settings }).result();
    assert.equal(result.seed, BigInt(seed));
    assert.equal(result.text, text);
  });

  test("a turn goes on after its connection was cut, every token once", async () => {
    const settings = { sampling: { seed: 3n, temperature: 1 }, maxTokenCount: 300, ignoreEndTokens: true };
    const whole = await client.generate([{ role: "user", content: QUESTIONS[0]! }], { settings }).result();
    const proxy = new Proxy(services.address);
    const cut = new Client(await proxy.listen());
    try {
      await using chat = await cut.chat({ settings });
      for (const ask of [
        () => chat.send(QUESTIONS[0]!),
        () => cut.generate([{ role: "user", content: QUESTIONS[0]! }], { settings }),
      ]) {
        const reply = ask();
        const before = proxy.connectionCount;
        const tokens = [...(await firstOf(reply)).tokenIds];
        proxy.cut();
        for await (const delta of reply) {
          assert.equal(delta.tokenOffset, tokens.length);
          tokens.push(...delta.tokenIds);
        }
        const result = await reply.result();
        assert.deepEqual(tokens, whole.tokenIds);
        assert.equal(result.text, whole.text);
        assert.ok(proxy.connectionCount > before, "the connection was not made again");
      }
    } finally {
      cut.close();
      proxy.close();
    }
  });

  test("a request id that is sent twice gives one turn", async () => {
    await using chat = await client.chat({ settings: SAMPLED });
    const requestId = "asked-once";
    const first = await chat.send(QUESTIONS[0]!, { requestId }).result();
    const second = await chat.send(QUESTIONS[0]!, { requestId }).result();
    assert.deepEqual(second, first);
    const { getSession } = OrchestratorService.method;
    const { session } = await client.call(getSession, { sessionId: chat.sessionId });
    assert.equal(session?.turnCount, 1);
    const error = await failure(chat.send("Something else.", { requestId }).result());
    assert.equal(error.reason, "REQUEST_ID_REUSED");
    assert.equal(error.retryable, false);
  });

  test("wrong fields are named", async () => {
    const settings = { sampling: { temperature: -1 }, maxTokenCount: 0 };
    const error = await failure(client.generate("x", { settings }).result());
    assert.equal(error.reason, "INVALID_FIELDS");
    assert.equal(error.retryable, false);
    assert.deepEqual(
      error.violations.map((violation) => violation.field),
      ["settings.sampling.temperature", "settings.max_token_count"],
    );
    assert.ok(error.violations.every((violation) => violation.description));
  });

  test("a session that is not there is said to be so, in a chat too", async () => {
    const sessionId = "0123456789abcdef";
    assert.equal((await failure(client.chat({ sessionId }))).reason, "SESSION_NOT_FOUND");
    assert.equal((await failure(client.watch(sessionId, 1).result())).reason, "SESSION_NOT_FOUND");
    assert.equal((await failure(client.cancel(sessionId, 1))).reason, "SESSION_NOT_FOUND");
  });
});

describe("with turns that last, behind TLS and tokens", () => {
  let client: Client;
  before(() => void (client = guardedClient()));
  after(() => client.close());

  /** Read an earlier turn to its end, which must come although nobody else reads it. */
  async function endOf(reply: Reply) {
    const { sessionId, turn } = reply.results[0]!;
    return (await client.watch(sessionId, turn).result()).finishReason;
  }

  test("a cancelled turn goes on to its last event", async () => {
    await using chat = await client.chat({ settings: LASTING });
    for (const ask of [() => chat.send("x"), () => client.generate("x", { settings: LASTING })]) {
      const reply = ask();
      await firstOf(reply);
      await reply.cancel();
      const result = await reply.result();
      assert.equal(result.finishReason, "CANCELLED");
      assert.ok(result.tokenIds.length > 0);
    }
  });

  test("a turn that is cancelled before it is known ends too", async () => {
    const reply = client.generate("x", { settings: LASTING });
    await reply.cancel();
    assert.equal((await reply.result()).finishReason, "CANCELLED");
  });

  test("leaving the loop ends the turn", async () => {
    const reply = client.generate("x", { settings: LASTING });
    for await (const _ of reply) break;
    assert.equal(await endOf(reply), "CANCELLED");
  });

  test("a reply that is closed unread ends its turn, and the next message is answered", async () => {
    await using chat = await client.chat({ settings: LASTING });
    const left = chat.send("x");
    const next = chat.send("y", { settings: { maxTokenCount: 5 } });
    assert.equal((await next.result()).tokenIds.length, 5);
    assert.equal(await endOf(left), "CANCELLED");
    assert.equal((await failure(left.result())).reason, "REPLY_CLOSED");
  });

  test("an aborted signal throws its reason, and ends the turn", async () => {
    await using chat = await client.chat({ settings: LASTING });
    const controllers = [new AbortController(), new AbortController()] as const;
    const replies = [
      chat.send("x", { signal: controllers[0].signal }),
      client.generate("x", { settings: LASTING, signal: controllers[1].signal }),
    ];
    for (const [index, reply] of replies.entries()) {
      await firstOf(reply);
      controllers[index]!.abort();
      await assert.rejects(reply.result(), { name: "AbortError" });
      assert.equal(await endOf(reply), "CANCELLED");
    }
  });

  test("a deadline throws a typed error, and ends the turn", async () => {
    await using chat = await client.chat({ settings: LASTING });
    for (const ask of [
      () => chat.send("x", { timeoutMs: 500 }),
      () => client.generate("x", { settings: LASTING, timeoutMs: 500 }),
    ]) {
      const reply = ask();
      const error = await failure(reply.result());
      assert.equal(error.reason, "DEADLINE_EXCEEDED");
      assert.equal(error.retryable, false);
      assert.equal(await endOf(reply), "CANCELLED");
    }
  });

  test("a watched turn goes on when its watcher leaves, and when its connection is cut", async () => {
    const proxy = new Proxy(services.guarded.address);
    const { ca, token } = services.guarded;
    const watcher = new Client(await proxy.listen(), {
      token,
      tls: { ca: Buffer.from(ca) },
      channelOptions: BY_NAME,
    });
    const settings = { ...LASTING, maxTokenCount: 60 };
    const reply = client.generate("x", { settings });
    try {
      const { tokenIds } = await firstOf(reply);
      const { sessionId, turn } = reply.results[0]!;
      await using left = watcher.watch(sessionId, turn);
      await firstOf(left);
      await left.close();
      const watched = watcher.watch(sessionId, turn, { afterTokenCount: tokenIds.length });
      await firstOf(watched);
      proxy.cut();
      const result = await watched.result();
      const whole = await reply.result();
      assert.equal(result.finishReason, "MAX_TOKENS");
      assert.deepEqual([...tokenIds, ...result.tokenIds], whole.tokenIds);
      assert.equal(proxy.connectionCount, 2);
    } finally {
      watcher.close();
      proxy.close();
    }
  });

  test("a wrong token and a missing one are refused", async () => {
    for (const stranger of [guardedClient({ token: "wrong" }), guardedWithoutToken()]) {
      const error = await failure(stranger.chat());
      assert.equal(error.reason, "UNAUTHENTICATED");
      assert.equal(error.retryable, false);
      assert.ok(error.metadata["why"]);
      stranger.close();
    }
  });

  test("a certificate of another authority ends the call", async () => {
    const stranger = new Client(services.guarded.address, { tls: true, channelOptions: BY_NAME });
    assert.equal((await failure(stranger.call(OrchestratorService.method.getServerInfo, {}))).reason, "UNAVAILABLE");
    stranger.close();
  });
});

function guardedWithoutToken(): Client {
  return new Client(services.guarded.address, {
    tls: { ca: Buffer.from(services.guarded.ca) },
    channelOptions: BY_NAME,
  });
}

test("a token goes to another machine over TLS alone", () => {
  for (const address of ["orchestrator.example:50051", "10.0.0.1:50051", "dns:///127.example:1"]) {
    assert.throws(() => new Client(address, { token: "secret" }), { reason: "PLAINTEXT" });
    new Client(address, { token: "secret", tls: true }).close();
  }
  for (const address of ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/x", "dns:///localhost:1"]) {
    new Client(address, { token: "secret" }).close();
  }
});
