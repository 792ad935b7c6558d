// A session, a connection that is lost in mid-turn, and a turn that is cancelled: node chat.js [HOST:PORT] [PROTOS]

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const address = process.argv[2] ?? "127.0.0.1:50051";
const protos = process.argv[3] ?? fileURLToPath(new URL("../../../protos", import.meta.url));
const definition = loader.loadSync("slipstream/v1/orchestrator.proto", {
  includeDirs: [protos],
  keepCase: true,
  enums: String,
  longs: String,
});
const { OrchestratorService } = grpc.loadPackageDefinition(definition).slipstream.v1;

const connect = () => new OrchestratorService(address, grpc.credentials.createInsecure());

// One turn as far as its events were received, over however many streams.
class Turn {
  tokens = [];
  text = "";

  take(event) {
    if (event.started) {
      this.sessionId = event.started.session_id;
      this.number = event.turn;
    } else if (event.delta) {
      assert.equal(event.delta.token_offset ?? 0, this.tokens.length, "a token is missing or came twice");
      this.tokens.push(...(event.delta.token_ids ?? []));
      this.text += event.delta.text ?? "";
      process.stdout.write(`${(event.delta.token_ids ?? []).join(" ")} `);
    } else if (event.finished) {
      this.text += event.finished.text ?? "";
      this.finishReason = event.finished.finish_reason;
    } else {
      throw new Error(`the turn failed: ${event.failed.error.message}`);
    }
  }

  // Reads until the turn's end, or until `enough` says that it has had enough.
  async read(call, enough = () => false) {
    for await (const { event } of call) {
      this.take(event);
      if (!this.finishReason && enough(this)) return;
    }
  }
}

const settings = { max_token_count: 1500, ignore_end_tokens: true };
let client = connect();
const created = await promisify(client.CreateSession.bind(client))({ request_id: randomUUID(), settings });
const sessionId = created.session.id;

const first = new Turn();
const message = { session_id: sessionId, request_id: randomUUID(), content: "What does os.path.join do?" };
await first.read(client.SendMessage(message), (turn) => turn.tokens.length >= 20);
assert.equal(first.finishReason, undefined, "the turn ended before its connection could be lost");
client.close(); // the connection goes, the turn goes on

const reached = first.tokens.length;
client = connect();
process.stdout.write(`\n-- watching on after ${reached} tokens\n`);
await first.read(client.WatchTurn({ session_id: sessionId, turn: first.number, after_token_count: reached }));
assert.equal(first.finishReason, "FINISH_REASON_MAX_TOKENS");
assert.equal(first.tokens.length, settings.max_token_count);

const again = new Turn(); // the same message once more is the same turn
await again.read(client.SendMessage(message));
assert.equal(again.number, first.number);
assert.deepEqual(again.tokens, first.tokens);
assert.equal(again.text, first.text);

process.stdout.write("\n-- a turn that is cancelled\n");
const second = new Turn();
const call = client.SendMessage({ session_id: sessionId, request_id: randomUUID(), content: "And json.dumps?" });
let cancelling;
for await (const { event } of call) {
  second.take(event);
  cancelling ??= promisify(client.CancelTurn.bind(client))({ session_id: sessionId, turn: second.number });
}
await cancelling;
assert.equal(second.finishReason, "FINISH_REASON_CANCELLED");

await promisify(client.DeleteSession.bind(client))({ session_id: sessionId });
client.close();
process.stdout.write(`\nok: ${first.tokens.length} tokens, each once; the second turn was cancelled after ${second.tokens.length}\n`);
