/** Vercel's AI SDK with its provider for servers of OpenAI's API, unmodified. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { sampled, schema, services, town } from "./services.mjs";

const { question: prompt, expected } = services;
const provider = (url) =>
  createOpenAICompatible({ name: "slipstream", baseURL: url, includeUsage: true, supportsStructuredOutputs: true });
const model = provider(services.url)(services.model);
const settings = {
  seed: sampled.seed,
  temperature: sampled.temperature,
  maxOutputTokens: sampled.max_tokens,
  maxRetries: 0,
};

test("a text is the one that gRPC has", async () => {
  const { text, usage } = await generateText({ model, prompt, ...settings });
  assert.equal(text, expected.chat);
  assert.ok(usage.outputTokens > 0);
});

test("a streamed text is the same", async () => {
  const { textStream, usage, finishReason } = streamText({ model, prompt, ...settings });
  let text = "";
  for await (const piece of textStream) text += piece;
  assert.equal(text, expected.chat);
  assert.ok((await usage).outputTokens > 0);
  assert.ok(["stop", "length"].includes(await finishReason));
});

test("an object follows its schema", async () => {
  const { output } = await generateText({ model, prompt, output: Output.object({ schema: jsonSchema(schema) }) });
  assert.ok(Number.isInteger(output.size));
  assert.ok(["file", "folder"].includes(output.kind));
});

test("a tool is called, and the answer follows its result", async () => {
  const asked = [];
  const weather = tool({
    description: "Tell it.",
    inputSchema: jsonSchema(town),
    execute: async ({ town: where }) => {
      asked.push(where);
      return "clear";
    },
  });
  const { steps, text } = await generateText({
    model: provider(services.tools.url)(services.tools.model),
    prompt: "And in Ulm?",
    tools: { weather },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    stopWhen: stepCountIs(2),
    providerOptions: { slipstream: { parallel_tool_calls: false } },
    ...settings,
    maxOutputTokens: 300,
  });
  assert.equal(steps.length, 2);
  assert.equal(asked.length, 1);
  assert.ok(["Ulm", "Bonn"].includes(asked[0]));
  assert.ok(text);
});

test("an aborted stream ends its turn", async () => {
  const controller = new AbortController();
  const { fullStream } = streamText({
    model: provider(services.lasting.url).completionModel(services.lasting.model),
    prompt: "x",
    maxOutputTokens: 8000,
    providerOptions: { slipstream: { speculation: "off" } },
    abortSignal: controller.signal,
    maxRetries: 0,
  });
  const kinds = [];
  for await (const part of fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") controller.abort();
  }
  assert.ok(kinds.includes("text-delta"), kinds.join());
});
