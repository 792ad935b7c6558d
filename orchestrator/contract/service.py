"""OrchestratorService on the wire. It converts requests, calls `Sessions`, and converts the
results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from opentelemetry.context import Context as TraceContext

from orchestrator.access.access import Access, Context, OpenAccess
from orchestrator.contract.acceptance import changes_message, history_message, hour_count_of
from orchestrator.contract.commands import (
    command_of,
    cursor_of,
    fork_of,
    generation_of,
    message_of,
    metadata_of,
    page_size_of,
    page_token,
    session_of,
    turn_count_of,
)
from orchestrator.contract.events import (
    asked_turn,
    chat_response,
    exported_turn,
    fitting_sessions,
    model_message,
    session_message,
    turn_event,
)
from orchestrator.contract.limits import caller_limits
from orchestrator.contract.messages import message_message, options_message
from orchestrator.contract.refusals import refusals
from orchestrator.contract.settings import settings_message, speculation_message
from orchestrator.contract.status import status_message
from orchestrator.contract.tokens import answered, tokenization_of, tokens_of, tokens_response
from orchestrator.contract.traces import fitting_turns, turn_trace_message
from orchestrator.errors import UnauthenticatedError
from orchestrator.peers.model_peer import PeerStatus
from orchestrator.sessions.admission.demand import AdmissionWait
from orchestrator.sessions.conversation.settings import ADAPTIVE, GenerationSettings
from orchestrator.sessions.entrance.chat import ChatStream
from orchestrator.sessions.entrance.chat_commands import ChatClosing, CommandFailed
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.readers import TurnReader, read_all
from orchestrator.sessions.turns.tokenizing import detokenize, tokenize
from orchestrator.watching.acceptance_keeping import AcceptanceKeeping
from orchestrator.watching.watching import Watching
from slipstream.telemetry.tracing import context_of_metadata
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc, turn_pb2
from slipstream.version import VERSION

_NO_STREAM_SETTINGS = GenerationSettings()


class PeersView(Protocol):
    """The verifiers and the draft, as a client may see them."""

    @property
    def reachable(self) -> tuple[bool, bool]:
        """Two booleans: a verifier can be reached now, and the draft can."""

    @property
    def collect_share(self) -> float | None:
        """Largest share of the sequences that a verifier collects; None if none says it."""

    @property
    def heads(self) -> str:
        """Kind of the heads that a verifier has; empty if none has any."""

    async def statuses(self) -> list[PeerStatus]:
        """Return the status of each."""


class OrchestratorService(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """The orchestrator's public service."""

    def __init__(
        self,
        sessions: Sessions,
        watching: Watching,
        peers: PeersView,
        acceptance: AcceptanceKeeping,
        access: Access | OpenAccess,
        number: int = 0,
    ) -> None:
        """Build the service. ``access`` tells the caller of each call. ``number`` is this
        process's, if there are several."""
        self._sessions = sessions
        self._watching = watching
        self._peers = peers
        self._acceptance = acceptance
        self._access = access
        self._number = number

    async def Generate(
        self, request: orchestrator_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        async with refusals(context):
            parent = context_of_metadata(context.invocation_metadata())
            with self._noting_refusals(parent):
                caller, wait = self._access.principal_of(context), AdmissionWait(context.time_remaining())
                turns = await self._sessions.generate(generation_of(request, caller), parent, wait)
            try:
                seen = [*request.after_token_counts, *[0] * (len(turns) - len(request.after_token_counts))]
                readers = [TurnReader(turn, count) for turn, count in zip(turns, seen, strict=True)]
                async with aclosing(read_all(readers)) as events:
                    async for index, event in events:
                        yield orchestrator_pb2.GenerateResponse(
                            event=turn_event(turns[index].turn, event, self._sessions.pair), choice_index=index
                        )
            finally:
                if not request.request_id:
                    self._sessions.abandon(turns)

    async def CreateSession(
        self, request: orchestrator_pb2.CreateSessionRequest, context: Context
    ) -> orchestrator_pb2.CreateSessionResponse:
        async with refusals(context):
            caller = self._access.principal_of(context)
            record = await self._sessions.create(session_of(request, caller))
            return orchestrator_pb2.CreateSessionResponse(
                session=session_message(record.summary, self._sessions.ttl_seconds)
            )

    async def SendMessage(
        self, request: orchestrator_pb2.SendMessageRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.SendMessageResponse]:
        async with refusals(context):
            parent = context_of_metadata(context.invocation_metadata())
            with self._noting_refusals(parent, request.session_id):
                caller, wait = self._access.principal_of(context), AdmissionWait(context.time_remaining())
                record = self._sessions.get_loaded(request.session_id, caller)
                message = message_of(request, caller)
                turn = await self._sessions.send(record, message, _NO_STREAM_SETTINGS, parent, wait)
            async with aclosing(_events(TurnReader(turn, request.after_token_count), self._sessions.pair)) as events:
                async for event in events:
                    yield orchestrator_pb2.SendMessageResponse(event=event)

    async def WatchTurn(
        self, request: orchestrator_pb2.WatchTurnRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.WatchTurnResponse]:
        async with refusals(context):
            caller = self._access.principal_of(context)
            turn = await self._sessions.turn(request.session_id, request.turn, caller)
            async with aclosing(_events(TurnReader(turn, request.after_token_count), self._sessions.pair)) as events:
                async for event in events:
                    yield orchestrator_pb2.WatchTurnResponse(event=event)

    async def CancelTurn(
        self, request: orchestrator_pb2.CancelTurnRequest, context: Context
    ) -> orchestrator_pb2.CancelTurnResponse:
        async with refusals(context):
            caller = self._access.principal_of(context)
            await self._sessions.cancel(self._sessions.get_loaded(request.session_id, caller), request.turn)
            return orchestrator_pb2.CancelTurnResponse()

    async def Chat(
        self, request_iterator: AsyncIterator[orchestrator_pb2.ChatRequest], context: Context
    ) -> AsyncIterator[orchestrator_pb2.ChatResponse]:
        try:
            self._access.principal_of(context)
        except UnauthenticatedError as error:  # as a response: the status is lost while its client is writing
            self._watching.call_refused("Chat", error)
            yield chat_response(CommandFailed("", error), self._sessions)
            return
        stream = ChatStream(self._sessions, context_of_metadata(context.invocation_metadata()))
        # Asked for each command: a chat may outlive its token.
        caller = partial(self._access.principal_of, context)
        commands = (command_of(request, caller) async for request in request_iterator)
        async with aclosing(stream.run(commands)) as events:
            async for event in events:
                if isinstance(event, CommandFailed | ChatClosing):
                    self._watching.call_refused("Chat", event.error)
                yield chat_response(event, self._sessions)

    async def GetTurn(
        self, request: orchestrator_pb2.GetTurnRequest, context: Context
    ) -> orchestrator_pb2.GetTurnResponse:
        async with refusals(context):
            caller = self._access.principal_of(context)
            return asked_turn(await self._sessions.asked(request.session_id, request.turn, caller))

    async def GetSession(
        self, request: orchestrator_pb2.GetSessionRequest, context: Context
    ) -> orchestrator_pb2.GetSessionResponse:
        async with refusals(context):
            record = await self._sessions.get(request.session_id, self._access.principal_of(context))
            return orchestrator_pb2.GetSessionResponse(
                session=session_message(record.summary, self._sessions.ttl_seconds),
                messages=map(message_message, record.session.messages),
                settings=settings_message(record.stored.settings),
                template_options=options_message(record.session.options),
            )

    async def ListSessions(
        self, request: orchestrator_pb2.ListSessionsRequest, context: Context
    ) -> orchestrator_pb2.ListSessionsResponse:
        async with refusals(context):
            caller = self._access.principal_of(context)
            size, after = page_size_of(request), cursor_of(request.page_token)
            sessions, more = await self._sessions.page(size, after, caller)
            shown = fitting_sessions([session_message(session, self._sessions.ttl_seconds) for session in sessions])
            more, sessions = more or len(shown) < len(sessions), sessions[: len(shown)]
            return orchestrator_pb2.ListSessionsResponse(
                sessions=shown,
                next_page_token=page_token((sessions[-1].created, sessions[-1].id)) if more else "",
            )

    async def ForkSession(
        self, request: orchestrator_pb2.ForkSessionRequest, context: Context
    ) -> orchestrator_pb2.ForkSessionResponse:
        async with refusals(context):
            caller = self._access.principal_of(context)
            record = await self._sessions.fork(request.session_id, fork_of(request), caller)
            return orchestrator_pb2.ForkSessionResponse(
                session=session_message(record.summary, self._sessions.ttl_seconds)
            )

    async def UpdateSession(
        self, request: orchestrator_pb2.UpdateSessionRequest, context: Context
    ) -> orchestrator_pb2.UpdateSessionResponse:
        async with refusals(context):
            caller = self._access.principal_of(context)
            record = await self._sessions.update(request.session_id, metadata_of(request.metadata), caller)
            return orchestrator_pb2.UpdateSessionResponse(
                session=session_message(record.summary, self._sessions.ttl_seconds)
            )

    async def ExportSession(
        self, request: orchestrator_pb2.ExportSessionRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.ExportSessionResponse]:
        async with refusals(context):
            record = await self._sessions.get(request.session_id, self._access.principal_of(context))
            first = record.session.messages[:1]
            exported = orchestrator_pb2.ExportedSession(
                session=session_message(record.summary, self._sessions.ttl_seconds),
                system=first[0].content if first and first[0].role == "system" else None,
                settings=settings_message(record.stored.settings),
                template_options=options_message(record.session.options),
            )
            yield orchestrator_pb2.ExportSessionResponse(session=exported)
            async with aclosing(self._sessions.turns(record)) as turns:
                async for turn in turns:
                    yield orchestrator_pb2.ExportSessionResponse(turn=exported_turn(turn))

    async def DeleteSession(
        self, request: orchestrator_pb2.DeleteSessionRequest, context: Context
    ) -> orchestrator_pb2.DeleteSessionResponse:
        async with refusals(context):
            await self._sessions.delete(request.session_id, self._access.principal_of(context))
            return orchestrator_pb2.DeleteSessionResponse()

    async def GetServerInfo(
        self, request: orchestrator_pb2.GetServerInfoRequest, context: Context
    ) -> orchestrator_pb2.GetServerInfoResponse:
        async with refusals(context):
            caller, pair = self._access.principal_of(context), self._sessions.pair
            limits, draft = pair.limits, pair.drafts.info
            default = limits.default_draft_length
            verifier_reachable, draft_reachable = self._peers.reachable
            target = replace(pair.target, collect_share=self._peers.collect_share, heads=self._peers.heads)
            return orchestrator_pb2.GetServerInfoResponse(
                version=VERSION,
                target=model_message(target),
                draft=None if draft is None else model_message(draft),
                default_speculation=speculation_message(ADAPTIVE if default is None else default),
                max_draft_length=limits.max_draft_length,
                default_max_token_count=limits.default_max_token_count,
                verifier_reachable=verifier_reachable,
                draft_reachable=draft_reachable,
                caller_limits=caller_limits(self._sessions.admission, caller),
            )

    async def GetTurnTraces(
        self, request: orchestrator_pb2.GetTurnTracesRequest, context: Context
    ) -> orchestrator_pb2.GetTurnTracesResponse:
        async with refusals(context):
            caller, most = self._access.principal_of(context), turn_count_of(request)
            turns = self._watching.ring.turns_of(request.session_id, most, None if caller.operator else caller.name)
            if not turns:
                await self._sessions.get(request.session_id, caller)  # there may be no such session
            return orchestrator_pb2.GetTurnTracesResponse(turns=map(turn_trace_message, fitting_turns(turns)))

    async def GetStatus(
        self, request: orchestrator_pb2.GetStatusRequest, context: Context
    ) -> orchestrator_pb2.GetStatusResponse:
        async with refusals(context):
            caller = self._access.principal_of(context)
            peers = await self._peers.statuses()
            status = status_message(self._sessions, self._watching.totals, peers, self._number, caller)
            return orchestrator_pb2.GetStatusResponse(processes=[status])

    async def GetAcceptanceHistory(
        self, request: orchestrator_pb2.GetAcceptanceHistoryRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.GetAcceptanceHistoryResponse]:
        async with refusals(context):
            self._access.operator_of(context, "acceptance by task tells what other callers ask: it is for operators")
            hour_count = hour_count_of(request)
            yield changes_message(await self._acceptance.target_changes())
            async with aclosing(self._acceptance.days(hour_count)) as days:
                async for rows in days:
                    yield history_message(rows)

    async def Tokenize(
        self, request: orchestrator_pb2.TokenizeRequest, context: Context
    ) -> orchestrator_pb2.TokenizeResponse:
        async with refusals(context):
            self._access.principal_of(context)
            pair, asked = self._sessions.pair, tokenization_of(request)
            tokens, strings = await tokenize(pair, asked, datetime.now(UTC))
            return tokens_response(
                tokens, strings, pair.target.context_length, request.WhichOneof("prompt") or "prompt"
            )

    async def Detokenize(
        self, request: orchestrator_pb2.DetokenizeRequest, context: Context
    ) -> orchestrator_pb2.DetokenizeResponse:
        async with refusals(context):
            self._access.principal_of(context)
            pair, tokens = self._sessions.pair, tokens_of(request)
            text = await detokenize(pair, tokens, skip_special_tokens=request.skip_special_tokens)
            return answered(orchestrator_pb2.DetokenizeResponse(text=text), "token_ids")

    @contextmanager
    def _noting_refusals(self, parent: TraceContext, session_id: str = "") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._sessions.note_refusal(error, parent, session_id)
            raise


async def _events(reader: TurnReader, pair: Pair) -> AsyncGenerator[turn_pb2.TurnEvent]:
    async with aclosing(read_all([reader])) as events:
        async for _, event in events:
            yield turn_event(reader.record.turn, event, pair)
