"""The Python client: single answers and sessions, blocking or with asyncio.

    with Client("127.0.0.1:50051") as client:
        with client.chat() as chat:
            for piece in chat.send("What does os.path.join do?"):
                print(piece, end="", flush=True)

A turn belongs to the server: a lost connection is made again and the reply continues where
it was, every token once. A refusal by the server, and a turn that fails, raise PeerError with the
server's code, reason and message.
"""

from __future__ import annotations

from slipstream.client.aio.client import AsyncClient
from slipstream.client.aio.reply import AsyncReply
from slipstream.client.aio.session import AsyncSession
from slipstream.client.blocking.client import Client
from slipstream.client.blocking.reply import Reply
from slipstream.client.blocking.session import Session
from slipstream.client.messages import Message, TemplateOptions, Tool, ToolCall
from slipstream.client.results import Delta, Result, TokenLogprobs, Tokens
from slipstream.client.sessions import SessionInfo
from slipstream.client.settings import Settings, Structure
from slipstream.rpc.status import PeerError
from slipstream.transport.addresses import PlaintextError

__all__ = [
    "AsyncClient",
    "AsyncReply",
    "AsyncSession",
    "Client",
    "Delta",
    "Message",
    "PeerError",
    "PlaintextError",
    "Reply",
    "Result",
    "Session",
    "SessionInfo",
    "Settings",
    "Structure",
    "TemplateOptions",
    "TokenLogprobs",
    "Tokens",
    "Tool",
    "ToolCall",
]
