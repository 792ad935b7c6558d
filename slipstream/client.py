"""The Python client: one-shot generation and chats, blocking, safe to use from threads.

    with Client("127.0.0.1:50051") as client:
        with client.chat() as chat:
            for piece in chat.send("What does os.path.join do?"):
                print(piece, end="", flush=True)

A failed call or command raises PeerError with the server's code, reason and message.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import grpc

from slipstream.rpc.channel import CHANNEL_OPTIONS
from slipstream.rpc.status import PeerError, error_of, error_of_call
from slipstream.rpc.wire import seconds
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc, sampling_pb2

__all__ = ["Chat", "Client", "PeerError", "Reply", "Result", "Settings", "Structure", "TokenLogprobs"]


@dataclass(frozen=True, slots=True)
class Structure:
    """What the text must look like. Exactly one is set: a JSON Schema as JSON text, a regular expression, a list of
    texts, or a grammar in Lark's notation."""

    json_schema: str | None = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    grammar: str | None = None

    def message(self) -> sampling_pb2.Structure:
        """This structure for the wire."""
        message = sampling_pb2.Structure()
        for name in ("json_schema", "regex", "grammar"):
            value = getattr(self, name)
            if value is not None:
                setattr(message, name, value)
        if self.choices is not None:
            message.choices.SetInParent()  # no choices are a mistake to tell, not nothing said
            message.choices.choices.extend(self.choices)
        return message


@dataclass(frozen=True, slots=True)
class Settings:
    """How tokens are chosen, where a turn ends and how it is sped up. None takes the server's default.

    ``draft_length`` 0 is off, a number so many tokens a round, "adaptive" as many as pay. ``overlap`` is what the draft
    does while the target verifies ("none", "enumerate" or "run_ahead"), ``proposer`` who proposes ("draft" or "ngram").
    ``top_logprob_count`` asks for log-probabilities of the generated tokens and of that many likeliest ones beside each;
    ``prompt_logprobs`` for the prompt's too. ``ratio`` takes the ratio test instead of coupled sampling.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    banned_token_ids: Sequence[int] = ()
    seed: int | None = None
    max_token_count: int | None = None
    min_token_count: int | None = None
    stop_strings: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_end_tokens: bool | None = None
    include_stop_in_text: bool | None = None
    top_logprob_count: int | None = None
    prompt_logprobs: bool = False
    structure: Structure | None = None
    ratio: bool | None = None
    proposal_top_k: int | None = None
    draft_length: int | Literal["adaptive"] | None = None
    overlap: Literal["none", "enumerate", "run_ahead"] | None = None
    proposer: Literal["draft", "ngram"] | None = None

    def _speculation(self) -> orchestrator_pb2.Speculation:
        speculation = orchestrator_pb2.Speculation()
        if self.draft_length == "adaptive":
            speculation.mode = orchestrator_pb2.Speculation.MODE_ADAPTIVE
        elif self.draft_length is not None:
            modes = orchestrator_pb2.Speculation
            speculation.mode = modes.MODE_FIXED if self.draft_length else modes.MODE_OFF
            if self.draft_length:
                speculation.draft_length = self.draft_length
        if self.overlap is not None:
            speculation.overlap = orchestrator_pb2.Speculation.Overlap.Value(f"OVERLAP_{self.overlap.upper()}")
        if self.proposer is not None:
            speculation.proposer = orchestrator_pb2.Speculation.Proposer.Value(f"PROPOSER_{self.proposer.upper()}")
        return speculation

    def message(self) -> orchestrator_pb2.GenerationSettings:
        """These settings for the wire."""
        logprobs = None
        if self.top_logprob_count is not None or self.prompt_logprobs:
            logprobs = orchestrator_pb2.LogprobSettings(
                top_count=self.top_logprob_count or 0, prompt=self.prompt_logprobs
            )
        acceptance = sampling_pb2.ACCEPTANCE_UNSPECIFIED
        if self.ratio is not None:
            acceptance = sampling_pb2.ACCEPTANCE_RATIO if self.ratio else sampling_pb2.ACCEPTANCE_COUPLED
        return orchestrator_pb2.GenerationSettings(
            sampling=sampling_pb2.SamplingParameters(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                typical_p=self.typical_p,
                repetition_penalty=self.repetition_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=self.logit_bias,
                allowed_token_ids=self.allowed_token_ids,
                banned_token_ids=self.banned_token_ids,
                seed=self.seed,
            ),
            max_token_count=self.max_token_count,
            min_token_count=self.min_token_count,
            stop_strings=self.stop_strings,
            stop_token_ids=self.stop_token_ids,
            ignore_end_tokens=self.ignore_end_tokens,
            include_stop_in_text=self.include_stop_in_text,
            logprobs=logprobs,
            structure=None if self.structure is None else self.structure.message(),
            acceptance=acceptance,
            proposal_top_k=self.proposal_top_k,
            speculation=self._speculation(),
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token, its log-probability under the target's own distribution, and the likeliest tokens with theirs."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Result:
    """A finished turn: its text and tokens, what it used and how its rounds went. Times in seconds."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each of ``token_ids``, if asked for."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens from the second on, if asked for."""
    seed: int = 0
    finish_reason: str = ""
    prompt_token_count: int = 0
    cached_token_count: int = 0
    generated_token_count: int = 0
    round_count: int = 0
    draft_count: int = 0
    draft_token_count: int = 0
    accepted_token_count: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    ngram_token_count: int = 0
    ngram_accepted_token_count: int = 0
    draft_failure_count: int = 0
    overlap_counts: dict[str, int] = field(default_factory=dict)
    """Rounds with the draft, by what it did meanwhile: none, enumerate, run_ahead."""
    switched_off_count: int = 0
    hit_count: int = 0
    miss_count: int = 0
    total_time: float = 0.0
    time_to_first_token: float = 0.0
    draft_time: float = 0.0
    verify_time: float = 0.0
    queue_time: float = 0.0
    network_time: float = 0.0
    orchestrator_time: float = 0.0
    draft_hidden_time: float = 0.0
    """The draft's forwards that went on while the target verified: not part of the total."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the turn's whole time."""
        return self.generated_token_count / self.total_time if self.total_time else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over proposed draft tokens; 0 without proposals."""
        return self.accepted_token_count / self.draft_token_count if self.draft_token_count else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a round with a proposal committed: 1 + accepted tokens / proposals; 1 without proposals."""
        return 1 + (self.accepted_token_count / self.draft_count if self.draft_count else 0.0)

    def _take(self, delta: orchestrator_pb2.TurnDelta) -> None:
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(map(_logprobs_of, delta.logprobs))
        self.prompt_logprobs.extend(map(_logprobs_of, delta.prompt_logprobs))

    def _finish(self, message: orchestrator_pb2.TurnFinished) -> None:
        usage, speculation, timing = message.usage, message.speculation, message.timing
        self.finish_reason = orchestrator_pb2.FinishReason.Name(message.finish_reason).removeprefix("FINISH_REASON_")
        self.prompt_token_count = usage.prompt_token_count
        self.cached_token_count = usage.cached_token_count
        self.generated_token_count = usage.generated_token_count
        self.round_count = speculation.round_count
        self.draft_count = speculation.draft_count
        self.draft_token_count = speculation.draft_token_count
        self.accepted_token_count = speculation.accepted_token_count
        self.accepted_per_position = list(speculation.accepted_per_position_counts)
        self.drafted_per_position = list(speculation.drafted_per_position_counts)
        self.ngram_token_count = speculation.ngram_token_count
        self.ngram_accepted_token_count = speculation.ngram_accepted_token_count
        self.draft_failure_count = speculation.draft_failure_count
        self.overlap_counts = {
            "none": speculation.synchronous_round_count,
            "enumerate": speculation.enumerated_round_count,
            "run_ahead": speculation.run_ahead_round_count,
        }
        self.switched_off_count = speculation.switched_off_count
        self.hit_count = speculation.hit_count
        self.miss_count = speculation.miss_count
        self.draft_hidden_time = seconds(timing.draft_hidden)
        self.total_time = seconds(timing.total)
        self.time_to_first_token = seconds(timing.time_to_first_token)
        self.draft_time = seconds(timing.draft)
        self.verify_time = seconds(timing.verify)
        self.queue_time = seconds(timing.queue)
        self.network_time = seconds(timing.network)
        self.orchestrator_time = seconds(timing.orchestrator)


def _logprobs_of(message: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
    top = tuple((entry.token_id, entry.logprob) for entry in message.top)
    return TokenLogprobs(message.token_id, message.logprob, top)


class Reply:
    """One turn in progress: iterate over its text; `result` is whole once the iteration has ended."""

    def __init__(self, events: Iterator[Any]) -> None:
        self.result = Result()
        self._events = events

    def __iter__(self) -> Iterator[str]:
        try:
            for event in self._events:
                kind = event.WhichOneof("event")
                if kind == "started":
                    self.result.seed = event.started.seed
                elif kind == "delta":
                    self.result._take(event.delta)
                    if event.delta.text:
                        yield event.delta.text
                elif kind == "finished":
                    self.result._finish(event.finished)
                    return
                elif kind == "failed":
                    raise error_of(event.failed.error)
        except grpc.RpcError as error:
            raise error_of_call(error) from error  # type: ignore[arg-type]

    def wait(self) -> Result:
        """Run to the end and return the result."""
        for _ in self:
            pass
        return self.result


class Chat:
    """A session of many turns over one stream. Leave it with ``close`` or a ``with`` block; resume it by ``session_id``."""

    def __init__(
        self,
        stub: orchestrator_pb2_grpc.OrchestratorServiceStub,
        *,
        session_id: str | None,
        system: str | None,
        settings: Settings,
    ) -> None:
        self._commands: queue.SimpleQueue[orchestrator_pb2.ChatRequest | None] = queue.SimpleQueue()
        start = orchestrator_pb2.StartChat(session_id=session_id, system=system, settings=settings.message())
        self._commands.put(orchestrator_pb2.ChatRequest(start=start))
        self._call = stub.Chat(iter(self._commands.get, None))
        try:
            first = next(self._call)
        except grpc.RpcError as error:
            raise error_of_call(error) from error  # type: ignore[arg-type]
        if first.WhichOneof("event") == "failed":
            self.close()
            raise error_of(first.failed.error)
        self.session_id: str = first.opened.session.id

    def send(self, content: str, settings: Settings | None = None) -> Reply:
        """Send a user message; iterate over the reply before sending the next."""
        message = orchestrator_pb2.UserMessage(content=content, settings=(settings or Settings()).message())
        self._commands.put(orchestrator_pb2.ChatRequest(message=message))
        return Reply(self._call)

    def cancel(self) -> None:
        """End the running turn early; its reply then finishes as CANCELLED. Callable from another thread."""
        self._commands.put(orchestrator_pb2.ChatRequest(cancel=orchestrator_pb2.CancelTurn()))

    def close(self) -> None:
        """Half-close the stream; the session stays."""
        self._commands.put(None)

    def abandon(self) -> None:
        """Break the stream off, running turn and all; the session stays."""
        self._call.cancel()
        self._commands.put(None)

    def __enter__(self) -> Chat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if error is None else self.abandon()


def _generate_request(prompt: str | Sequence[int], settings: Settings | None) -> orchestrator_pb2.GenerateRequest:
    request = orchestrator_pb2.GenerateRequest(settings=(settings or Settings()).message())
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.tokens.token_ids.extend(prompt)
    return request


class Client:
    """A connection to one orchestrator."""

    def __init__(self, address: str = "127.0.0.1:50051") -> None:
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.stub = orchestrator_pb2_grpc.OrchestratorServiceStub(self._channel)

    def generate(self, prompt: str | Sequence[int], settings: Settings | None = None) -> Reply:
        """One answer to a raw text or to token ids: no chat template, no session."""
        return Reply(self.stub.Generate(_generate_request(prompt, settings)))

    def generate_choices(
        self, prompt: str | Sequence[int], count: int, settings: Settings | None = None
    ) -> list[Result]:
        """Several answers to one prompt, waited for; the first is the one `generate` would give with the same seed."""
        request = _generate_request(prompt, settings)
        request.choice_count = count
        results = [Result() for _ in range(count)]
        try:
            for event in self.stub.Generate(request):
                result = results[event.choice_index]
                kind = event.WhichOneof("event")
                if kind == "started":
                    result.seed = event.started.seed
                elif kind == "delta":
                    result._take(event.delta)
                else:
                    result._finish(event.finished)
        except grpc.RpcError as error:
            raise error_of_call(error) from error  # type: ignore[arg-type]
        return results

    def answer(self, messages: Sequence[tuple[str, str]], settings: Settings | None = None) -> Reply:
        """One answer to a conversation of (role, content) pairs; no session."""
        pairs = [orchestrator_pb2.Message(role=role, content=content) for role, content in messages]
        request = orchestrator_pb2.GenerateRequest(
            conversation=orchestrator_pb2.MessageList(messages=pairs), settings=(settings or Settings()).message()
        )
        return Reply(self.stub.Generate(request))

    def chat(
        self, *, session_id: str | None = None, system: str | None = None, settings: Settings | None = None
    ) -> Chat:
        """A new session, or with ``session_id`` an old one. PeerError if it is unknown or has expired."""
        return Chat(self.stub, session_id=session_id, system=system, settings=settings or Settings())

    def server_info(self) -> orchestrator_pb2.GetServerInfoResponse:
        """The pair being served and its limits."""
        try:
            return self.stub.GetServerInfo(orchestrator_pb2.GetServerInfoRequest())
        except grpc.RpcError as error:
            raise error_of_call(error) from error  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
