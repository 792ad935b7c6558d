/** OpenAI's package for Node, unmodified. */
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { sampled, schema, services, town } from "./services.mjs";

const { model, question, expected } = services;
const client = new OpenAI({ baseURL: services.url, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: question }];

test("a chat has the text that gRPC has", async () => {
  const answer = await client.chat.completions.create({ model, messages, ...sampled });
  assert.equal(answer.choices[0].message.content, expected.chat);
});

test("a streamed chat has the same text, and tells its usage", async () => {
  const stream = client.chat.completions.stream({
    model,
    messages,
    stream_options: { include_usage: true },
    ...sampled,
  });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  assert.equal(text, expected.chat);
  assert.equal(await stream.finalContent(), expected.chat);
  assert.ok((await stream.totalUsage()).completion_tokens > 0);
});

test("several answers are gRPC's, streamed or not", async () => {
  const whole = await client.chat.completions.create({ model, messages, n: 3, ...sampled });
  assert.deepEqual(
    whole.choices.map((choice) => choice.message.content),
    expected.choices,
  );
  const streamed = ["", "", ""];
  for await (const chunk of await client.chat.completions.create({ model, messages, n: 3, stream: true, ...sampled })) {
    for (const choice of chunk.choices) streamed[choice.index] += choice.delta.content ?? "";
  }
  assert.deepEqual(streamed, expected.choices);
});

test("log-probabilities are gRPC's", async () => {
  const answer = await client.chat.completions.create({ model, messages, logprobs: true, top_logprobs: 2, ...sampled });
  const tokens = answer.choices[0].logprobs.content;
  assert.deepEqual(
    tokens.map((token) => token.logprob),
    expected.logprobs,
  );
  assert.ok(tokens.every((token) => token.top_logprobs.length === 2));
});

test("an answer follows its schema", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "entry", schema, strict: true } };
  const completion = await client.chat.completions.parse({ model, messages, response_format });
  const { size, kind } = completion.choices[0].message.parsed ?? JSON.parse(completion.choices[0].message.content);
  assert.ok(Number.isInteger(size) && size >= 0 && size <= 9);
  assert.ok(["file", "folder"].includes(kind));
});

test("a completion echoes its prompt and goes on as over gRPC", async () => {
  const prompt = "import os.path";
  const { choices } = await client.completions.create({ model, prompt, echo: true, ...sampled });
  assert.equal(choices[0].text, prompt + expected.continuation);
});

test("responses that follow one another are a session's turns", async () => {
  const { seed, temperature, max_tokens: max_output_tokens } = sampled;
  const ask = (input, previous_response_id) =>
    client.responses.create({ model, input, previous_response_id, seed, temperature, max_output_tokens });
  const first = await ask(question);
  const second = await ask(services.next, first.id);
  assert.deepEqual([first.output_text, second.output_text], expected.session);
  assert.equal((await client.responses.retrieve(second.id)).output_text, expected.session[1]);
});

test("a streamed response has the same text", async () => {
  const { seed, temperature, max_tokens: max_output_tokens } = sampled;
  const stream = client.responses.stream({ model, input: question, seed, temperature, max_output_tokens });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert.equal(text, expected.session[0]);
  assert.equal((await stream.finalResponse()).output_text, text);
});

test("a streamed response and the result of its call go back as they are", async () => {
  const tools = new OpenAI({ baseURL: services.tools.url, apiKey: "unused", maxRetries: 0 });
  const fields = {
    model: services.tools.model,
    tools: [{ type: "function", name: "weather", parameters: town, strict: true }],
    store: false,
    seed: sampled.seed,
    max_output_tokens: 300,
  };
  const input = [{ role: "user", content: "And in Ulm?" }];
  const called = tools.responses.stream({ ...fields, input, tool_choice: { type: "function", name: "weather" } });
  input.push(...(await called.finalResponse()).output);
  const call = input.find((item) => item.type === "function_call");
  assert.ok(["Ulm", "Bonn"].includes(JSON.parse(call.arguments).town));
  input.push({ type: "function_call_output", call_id: call.call_id, output: "clear" });
  const answered = await tools.responses.stream({ ...fields, input, tool_choice: "none" }).finalResponse();
  input.push(...answered.output, { role: "user", content: "And now?" });
  const next = await tools.responses.create({ ...fields, input, tool_choice: "none" });
  assert.equal(next.status === "completed" || next.status === "incomplete", true);
});

test("the package runs a tool that the model calls, and sends its result", async () => {
  const tools = new OpenAI({ baseURL: services.tools.url, apiKey: "unused", maxRetries: 0 });
  const asked = [];
  const weather = (argument) => {
    asked.push(argument.town);
    return "clear";
  };
  const runner = tools.chat.completions.runTools({
    model: services.tools.model,
    messages: [{ role: "user", content: "And in Ulm?" }],
    tools: [
      { type: "function", function: { name: "weather", parameters: town, parse: JSON.parse, function: weather } },
    ],
    tool_choice: { type: "function", function: { name: "weather" } },
    parallel_tool_calls: false,
    stream: true,
    ...sampled,
    max_tokens: 300,
  });
  await runner.done();
  assert.equal(asked.length, 1);
  assert.ok(["Ulm", "Bonn"].includes(asked[0]));
  assert.equal(runner.messages.at(-1).role, "tool");
  const next = await tools.chat.completions.create({
    model: services.tools.model,
    messages: runner.messages,
    tools: [{ type: "function", function: { name: "weather", parameters: town } }],
    tool_choice: "none",
    ...sampled,
  });
  assert.ok(next.choices[0].message.content);
});

test("a wrong field is a BadRequestError that names it", async () => {
  await assert.rejects(client.chat.completions.create({ model, messages, temperature: -1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.param, error.code], [400, "temperature", "invalid_fields"]);
    return true;
  });
});

test("an aborted stream ends its turn", async () => {
  const lasting = new OpenAI({ baseURL: services.lasting.url, apiKey: "unused", maxRetries: 0 });
  const stream = await lasting.completions.create({
    model: services.lasting.model,
    prompt: [10, 20, 30],
    max_tokens: 8000,
    speculation: "off",
    return_token_ids: true,
    stream: true,
  });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "text_completion");
    stream.controller.abort(); // tests/system/test_openai_libraries.py then looks whether the turn runs
  }
});
