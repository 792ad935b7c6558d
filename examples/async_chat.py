"""Run two chats at once: ``python examples/async_chat.py [HOST:PORT]``. Start the services with
``make up``."""

import asyncio
import sys

from slipstream.client import AsyncClient, Settings

QUESTIONS = ("What does os.path.join do?", "And json.dumps?")


async def talk(client: AsyncClient, question: str) -> str:
    """Return the answer of one chat. PeerError if it takes longer than a minute."""
    settings = Settings(temperature=0.8, seed=7, max_token_count=64)
    async with await client.chat(settings=settings) as chat, await chat.send(question, timeout=60) as reply:
        pieces = [piece async for piece in reply]
    return f"> {question}\n{''.join(pieces)}\n{reply.result.finish_reason}, {len(pieces)} pieces"


async def main() -> None:
    """Ask both questions at the same time."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    async with AsyncClient(address) as client:
        for answer in await asyncio.gather(*(talk(client, question) for question in QUESTIONS)):
            print(answer)


asyncio.run(main())
