/** What the tests talk to: tests/system/test_openai_libraries.py starts it and says where it is. */
const said = process.env.SLIPSTREAM_TEST_SERVICES;
if (!said) throw new Error("SLIPSTREAM_TEST_SERVICES is not set: run tests/system/test_openai_libraries.py");

/**
 * `url` and `model` of a gateway with the embedded pair, `lasting` with those of one whose answers
 * take minutes, `tools` with those of one whose chat template reads tools, and what Python's gRPC
 * client got.
 * @type {{
 *   url: string, model: string, lasting: { url: string, model: string },
 *   tools: { url: string, model: string }, question: string, next: string,
 *   expected: { chat: string, session: string[], choices: string[], logprobs: number[], continuation: string },
 * }}
 */
export const services = JSON.parse(said);

/** Settings of the expected texts. */
export const sampled = { seed: 7, temperature: 1.5, max_tokens: 40 };

/** Arguments of a tool. */
export const town = {
  type: "object",
  properties: { town: { enum: ["Ulm", "Bonn"] } },
  required: ["town"],
  additionalProperties: false,
};

/** What the answer must follow, in the test of schemas. */
export const schema = {
  type: "object",
  properties: { size: { type: "integer", minimum: 0, maximum: 9 }, kind: { enum: ["file", "folder"] } },
  required: ["size", "kind"],
  additionalProperties: false,
};
