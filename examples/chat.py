"""Run two turns of a chat: ``python examples/chat.py [HOST:PORT]``. Start the services with
``make up``."""

import sys

from slipstream.client import Client, Settings

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
with (
    Client(address) as client,
    client.chat(settings=Settings(temperature=0.8, seed=7, max_token_count=64)) as chat,
):
    for question in ("What does os.path.join do?", "And json.dumps?"):
        print(f"> {question}")
        reply = chat.send(question)
        for piece in reply:
            print(piece, end="", flush=True)
        result = reply.result
        print(
            f"\n{result.finish_reason}, {result.cached_token_count} of {result.prompt_token_count} prompt tokens cached"
        )
