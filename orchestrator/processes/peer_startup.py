"""Wait for a service without a time limit, and ask which model it hosts."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from orchestrator.errors import OverloadedError
from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.sessions.conversation.codec import Codec
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


async def wait_for_peer(peer: VerifierPeer | DraftPeer) -> ModelInfo:
    """Return what a service hosts, as soon as it serves."""
    while True:
        try:
            return await peer.wait_until_serving()
        except SlipstreamError as error:
            if error.reason not in (Reason.PEER_UNAUTHENTICATED, Reason.PEER_FAULT):  # these have been logged
                log.warning("the %s service at %s: %s", peer.role, peer.address, error)
            await asyncio.sleep(_RETRY_SECONDS)


async def wait_for_restart(peer: VerifierPeer | DraftPeer) -> ModelInfo:
    """Wait until a service has gone and come back; return what it hosts then."""
    await peer.wait_until_back()
    return await wait_for_peer(peer)


async def wait_for_codec(peer: VerifierPeer) -> tuple[ModelInfo, Codec]:
    """Return what a verifier hosts, and its tokenizer, as soon as it serves."""
    while True:
        info = await wait_for_peer(peer)
        try:
            codec = _codec_of(await peer.fetch_tokenizer())
        except SlipstreamError as error:  # it went away between two requests
            if isinstance(error, PeerFaultError):
                peer.faults.note(error)
            else:
                log.warning("the verifier service at %s: %s", peer.address, error)
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        await _try_template(info, codec)
        return info, codec


async def _try_template(info: ModelInfo, codec: Codec) -> None:
    """Log a warning if the chat template cannot render a chat."""
    try:
        fault = await asyncio.to_thread(codec.template_fault, datetime.now(UTC))
    except OverloadedError as error:  # a later chat may be rendered
        log.warning("%s: the chat template could not be tested: %s", info.name, error)
        return
    if fault is not None:
        log.warning("%s: chats are refused, raw prompts are served: %s", info.name, fault)


def _codec_of(files: dict[str, bytes]) -> Codec:
    """Return the tokenizer of these files. PeerFaultError if they are not one."""
    try:
        return Codec.from_files(files)
    except Exception as error:  # each library has errors of its own
        raise PeerFaultError("tokenizer", f"must be files that make a tokenizer: {str(error)[:200]!r}") from error
