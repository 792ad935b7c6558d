# Generated from aio/client.py by tools/make_blocking_client.py. Edit that module.
"""A connection to an orchestrator, and the requests that it takes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import grpc

from slipstream.client import json_calls, requests
from slipstream.client.attempts import Contact
from slipstream.client.blocking import session as sessions
from slipstream.client.blocking.connection import Connection
from slipstream.client.blocking.reply import Reply
from slipstream.client.blocking.session import Session
from slipstream.client.blocking.threads import Channel
from slipstream.client.blocking.watcher import Watcher
from slipstream.client.identity import call_metadata
from slipstream.client.messages import Message, Said, TemplateOptions
from slipstream.client.results import Result, Tokens
from slipstream.client.sessions import SessionInfo, exported
from slipstream.client.settings import Settings
from slipstream.client.watching import Watching
from slipstream.rpc.status import PeerError
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc


class Client:
    """A connection to one orchestrator.

    `Client` blocks, and threads may share one. `AsyncClient` has the same methods, awaited. It may
    be made anywhere, and belongs to the event loop where it is first used.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
        reconnect: float = 30.0,
        on_lost: Callable[[PeerError], None] | None = None,
    ) -> None:
        """Prepare a connection; the first call makes it.

        ``credentials`` turn TLS on; None is plaintext. ``token`` authenticates the caller. It needs
        TLS or a loopback address: PlaintextError. Every call carries ``metadata``. ``timeout`` is
        the default of every call in seconds, for replies of the whole turn; None is no limit. A
        lost server is called again for ``reconnect`` seconds; one that was never reached is not.
        ``on_lost`` is called once for each loss.
        """
        said = call_metadata(address, credentials, metadata, token)
        self._address, self._credentials = address, credentials
        self._connection = Connection(Channel(address, credentials), said, timeout, Contact(reconnect, on_lost))

    @property
    def stub(self) -> orchestrator_pb2_grpc.OrchestratorServiceStub:
        """The service's gRPC stub, for calls that this class does not have, such as the Chat
        stream."""
        return self._connection.stub

    def for_caller(self, token: str | None = None, metadata: Sequence[tuple[str, str]] = ()) -> Client:
        """Return a client that uses this one's connection with another caller's token and metadata,
        for a program that passes on the calls of others. This client's own are not sent. Closing
        the new client ends its replies, and leaves the connection open. PlaintextError, ValueError
        as for this class."""
        client = copy.copy(self)
        client._connection = self._connection.beside(call_metadata(self._address, self._credentials, metadata, token))
        return client

    def generate(
        self,
        prompt: str | Sequence[int],
        settings: Settings | None = None,
        request_id: str | None = None,
        *,
        prediction: str | Sequence[int] | None = None,
        choice_count: int = 1,
        timeout: float | None = None,
    ) -> Reply:
        """Answer a raw text or token ids, without a chat template and without a session.

        The same ``request_id`` again gets the same answer. It is unique among all requests of one
        token, its users' together. Left out, it is random. ``prediction`` is text, or token ids,
        that the answer probably contains: it makes the answer come sooner, and never changes it.
        With a ``choice_count`` above 1 the reply has so many answers: a delta says which one it
        belongs to, and ``results`` has them all.
        """
        return self._reply(requests.generate(prompt, settings, request_id, choice_count, prediction), timeout)

    def generate_choices(
        self,
        prompt: str | Sequence[int],
        count: int,
        settings: Settings | None = None,
        request_id: str | None = None,
        *,
        prediction: str | Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[Result]:
        """Answer a prompt several times, and wait for all answers. The first one is what `generate`
        gives with the same seed. PeerError if one of them fails; the others then end.
        ``prediction`` is for all of them."""
        reply = self._reply(requests.generate(prompt, settings, request_id, count, prediction), timeout)
        reply.wait()
        return reply.results

    def answer(
        self,
        messages: Sequence[Said],
        settings: Settings | None = None,
        request_id: str | None = None,
        *,
        template_time: datetime | None = None,
        template_options: TemplateOptions | None = None,
        prediction: str | Sequence[int] | None = None,
        choice_count: int = 1,
        timeout: float | None = None,
    ) -> Reply:
        """Answer a conversation, without a session. Its messages are `Message` objects or (role,
        content) pairs. ``template_time`` is the time that the chat template sees, and
        ``template_options`` are the tools and variables that it reads. ``prediction`` and
        ``choice_count`` are as in `generate`."""
        request = requests.answer(
            messages, settings, template_time, request_id, choice_count, prediction, template_options
        )
        return self._reply(request, timeout)

    def chat(
        self,
        *,
        session_id: str | None = None,
        system: str | None = None,
        settings: Settings | None = None,
        template_time: datetime | None = None,
        template_options: TemplateOptions | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Session:
        """Begin a new session, or resume the one with ``session_id``. PeerError if it is unknown or
        has expired.

        ``metadata`` is kept with a new session, as in `create_session`. For a resumed session,
        ``settings`` lie over its own and under a message's, and ``system``, ``template_time``,
        ``template_options`` and ``metadata`` must be left out. The session uses SendMessage and
        WatchTurn rather than the Chat stream: no stream stays open between messages, and a lost one
        is watched on. The Chat stream is at ``stub.Chat``.
        """
        if session_id is None:
            return self.create_session(
                system,
                settings,
                template_time,
                template_options=template_options,
                metadata=metadata,
                timeout=timeout,
            )
        requests.check_resumed(system, template_time, metadata, template_options)
        return self._session(session_id, settings, timeout)

    def create_session(
        self,
        system: str | None = None,
        settings: Settings | None = None,
        template_time: datetime | None = None,
        request_id: str | None = None,
        *,
        template_options: TemplateOptions | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Session:
        """Create a session to send messages to. ``settings`` are those of all its turns, and so are
        ``template_options``, the tools and variables that the chat template reads.
        ``metadata`` is kept with it, such as a title: at most 16 entries.

        The same ``request_id`` again gives the session that is there. It is unique among all
        requests of one token, its users' together. Left out, it is random.
        """
        request = requests.create_session(system, settings, template_time, request_id, metadata, template_options)
        created = self._connection.call(self.stub.CreateSession, request, self._connection.attempts(timeout))
        return Session(self._connection, SessionInfo.from_message(created.session))

    def get_session(self, session_id: str, *, timeout: float | None = None) -> Session:
        """Return a session with its messages. PeerError if it is unknown or has expired."""
        return self._session(session_id, None, timeout)

    def list_sessions(self, *, page_size: int = 0, timeout: float | None = None) -> Iterator[SessionInfo]:
        """Iterate over all sessions, last created first. A call asks for ``page_size`` of them, and
        ``timeout`` is a call's."""
        request = orchestrator_pb2.ListSessionsRequest(page_size=page_size)
        while True:
            page = self._connection.call(self.stub.ListSessions, request, self._connection.attempts(timeout))
            for session in page.sessions:
                yield SessionInfo.from_message(session)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def fork_session(
        self,
        session_id: str,
        after_turn: int | None = None,
        request_id: str | None = None,
        *,
        system: str | None = None,
        template_options: TemplateOptions | None = None,
        timeout: float | None = None,
    ) -> Session:
        """Create a session that begins as another one is after ``after_turn``, which has ended.
        None: after its last turn. ``system`` takes the place of the other's system message; an
        empty text is none. ``template_options`` take the place of the other's."""
        request = requests.fork_session(session_id, after_turn, request_id, system, template_options)
        forked = self._connection.call(self.stub.ForkSession, request, self._connection.attempts(timeout))
        return Session(self._connection, SessionInfo.from_message(forked.session))

    def update_session(
        self, session_id: str, metadata: Mapping[str, str], *, timeout: float | None = None
    ) -> SessionInfo:
        """Change what is kept with a session: ``metadata`` takes the place of the session's. Return
        the session as it is then."""
        request = orchestrator_pb2.UpdateSessionRequest(session_id=session_id, metadata=metadata)
        attempts = self._connection.attempts(timeout)
        return SessionInfo.from_message((self._connection.call(self.stub.UpdateSession, request, attempts)).session)

    def export_session(self, session_id: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return all that the server stores of a session, in protobuf's JSON: an ExportedSession,
        with an ExportedTurn in ``turns`` for each turn that has ended."""
        request = orchestrator_pb2.ExportSessionRequest(session_id=session_id)
        attempts = self._connection.attempts(timeout)
        return exported(self._connection.collect(self.stub.ExportSession, request, attempts))

    def delete_session(self, session_id: str, *, timeout: float | None = None) -> None:
        """Delete a session and end its turn. PeerError if there is no such session."""
        sessions.delete(self._connection, session_id, timeout)

    def get_turn(self, session_id: str, turn: int, *, timeout: float | None = None) -> orchestrator_pb2.GetTurnResponse:
        """Return what a turn was asked, and whether it runs; `watch` has its answer. PeerError if
        there is no such turn."""
        request = orchestrator_pb2.GetTurnRequest(session_id=session_id, turn=turn)
        return self._connection.call(self.stub.GetTurn, request, self._connection.attempts(timeout))

    def watch(self, session_id: str, turn: int, after_token_count: int = 0, *, timeout: float | None = None) -> Reply:
        """Watch a turn, running or ended, from a position. The result has the tokens after it.
        ``session_id`` may be a single answer's ``result.session_id``."""
        return sessions.watch(self._connection, session_id, turn, after_token_count, timeout)

    def cancel(self, session_id: str, turn: int, *, timeout: float | None = None) -> None:
        """End a turn early. A turn that has ended stays as it is. PeerError if there is no such
        turn."""
        sessions.cancel(self._connection, session_id, turn, timeout)

    def server_info(self, *, timeout: float | None = None) -> orchestrator_pb2.GetServerInfoResponse:
        """Return which models are served, and their limits."""
        return self._connection.call(
            self.stub.GetServerInfo, orchestrator_pb2.GetServerInfoRequest(), self._connection.attempts(timeout)
        )

    def tokenize(
        self,
        prompt: str | Sequence[Said],
        *,
        add_special_tokens: bool | None = None,
        add_generation_prompt: bool | None = None,
        template_time: datetime | None = None,
        template_options: TemplateOptions | None = None,
        token_strings: bool = False,
        timeout: float | None = None,
    ) -> Tokens:
        """Return the tokens of a raw text, or of a conversation: those that `generate` and `answer`
        would give the model.

        ``add_special_tokens`` is for a text. False leaves out the special tokens that the tokenizer
        puts around it. ``add_generation_prompt``, ``template_time`` and ``template_options``
        are for a conversation. False ends it with its last message, so that no answer follows.
        """
        request = requests.tokenize(
            prompt,
            add_special_tokens,
            add_generation_prompt,
            template_time,
            template_options,
            token_strings=token_strings,
        )
        attempts = self._connection.attempts(timeout)
        return Tokens.from_message(self._connection.call(self.stub.Tokenize, request, attempts))

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False, timeout: float | None = None
    ) -> str:
        """Return the text of token ids. ``skip_special_tokens`` leaves special tokens out, as the
        text of answers does."""
        request = orchestrator_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        attempts = self._connection.attempts(timeout)
        return (self._connection.call(self.stub.Detokenize, request, attempts)).text

    def turn_traces(
        self, session_id: str, turn_count: int = 1, *, timeout: float | None = None
    ) -> orchestrator_pb2.GetTurnTracesResponse:
        """Return a session's last turns round by round: where their time went.

        At most 64 turns, as far as the server keeps them. ``session_id`` may be a single answer's
        ``result.session_id``. PeerError if there is no such session.
        """
        request = orchestrator_pb2.GetTurnTracesRequest(session_id=session_id, turn_count=turn_count)
        return self._connection.call(self.stub.GetTurnTraces, request, self._connection.attempts(timeout))

    def status(self, *, timeout: float | None = None) -> orchestrator_pb2.GetStatusResponse:
        """Return how busy the orchestrator's processes and their peers are. Counts begin with each
        process: two calls make a rate."""
        return self._connection.call(
            self.stub.GetStatus, orchestrator_pb2.GetStatusRequest(), self._connection.attempts(timeout)
        )

    def acceptance_history(
        self, hour_count: int = 0, *, timeout: float | None = None
    ) -> orchestrator_pb2.GetAcceptanceHistoryResponse:
        """Return how many draft tokens the target accepted, by hour and task: of the last
        ``hour_count`` hours, or by default of eight days. PeerError if the caller is no
        operator."""
        request = orchestrator_pb2.GetAcceptanceHistoryRequest(hour_count=hour_count)
        whole = orchestrator_pb2.GetAcceptanceHistoryResponse()
        for part in self._connection.collect(
            self.stub.GetAcceptanceHistory, request, self._connection.attempts(timeout)
        ):
            whole.MergeFrom(part)
        return whole

    def call_json(self, method: str, request: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Call a method that has one response, such as "GetSession", with request and response in
        protobuf's JSON. PeerError also if the request has an unknown field or a wrong value."""
        message = json_calls.request_from_json(method, request)
        attempts = self._connection.attempts(timeout)
        return json_calls.response_as_json(self._connection.call(getattr(self.stub, method), message, attempts))

    def stream_json(
        self, method: str, request: Mapping[str, Any], *, timeout: float | None = None
    ) -> Generator[dict[str, Any], None]:
        """Iterate over the responses of a method such as "WatchTurn", in protobuf's JSON. A stream
        that is lost is not begun again: PeerError."""
        message = json_calls.request_from_json(method, request)
        attempts = self._connection.attempts(timeout)
        responses = self._connection.stream(getattr(self.stub, method), message, attempts)
        with contextlib.closing(responses):
            for response in responses:
                yield json_calls.response_as_json(response)

    def close(self) -> None:
        """Close the replies that were not read to their end, and the connection."""
        self._connection.close_connection()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reply(self, request: requests.TurnRequest, timeout: float | None) -> Reply:
        return Reply(Watcher(self._connection, Watching(request, self._connection.attempts(timeout))))

    def _session(self, session_id: str, settings: Settings | None, timeout: float | None) -> Session:
        request = orchestrator_pb2.GetSessionRequest(session_id=session_id)
        got = self._connection.call(self.stub.GetSession, request, self._connection.attempts(timeout))
        return Session(
            self._connection,
            SessionInfo.from_message(got.session),
            list(map(Message.from_message, got.messages)),
            settings,
        )
