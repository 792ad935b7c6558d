/** Server-sent events of a response's body: EventSource can neither POST nor send a token. */

export async function* parseEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  let unread = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      unread += value;
      const blocks = unread.split("\n\n");
      unread = blocks.pop() ?? "";
      for (const block of blocks) {
        if (block.startsWith("data: ")) yield block.slice("data: ".length);
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
