"""Requests for each method: nearly correct ones that are then damaged, or meaningless ones."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from proving.hostile.fields import FieldSource, is_message
from slipstream.rpc.sampling_wire import rule_hash, rule_message
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.v1 import orchestrator_pb2
from slipstream.wire.v1 import draft_pb2, hint_pb2, model_pb2, verifier_pb2

ORCHESTRATOR = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]
MODEL = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
VERIFIER = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"]
DRAFT = draft_pb2.DESCRIPTOR.services_by_name["DraftService"]
SERVICES: tuple[ServiceDescriptor, ...] = (ORCHESTRATOR, MODEL, VERIFIER, DRAFT)

_KEPT = 64
_MOST_TOKENS = 12
"""Most tokens of a correct turn."""
_BATCH = (1, 1, 4, 16, 48)
"""Parts of one message of a stream."""
_HUGE = (17 * 2**20, 65 * 2**20)
_HUGE_ODDS = 0.0002
_MUCH = 16 * 2**20
"""Bytes that an orchestrator reads of one message."""
_TOKENS = range(3, 200)
_LENGTHS = (0, 1, 8, 64, 2**31 - 1)
"""Lengths that runs are granted."""


@dataclass(slots=True)
class Belongings:
    """Names that this caller has received or invented, and names of others that it has seen."""

    sessions: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    others: tuple[str, ...] = ()
    """Sessions that must not be disturbed. The caller only reads them."""
    handles: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))


@dataclass(frozen=True, slots=True)
class Asked:
    """One message as sent, and the answers that are allowed."""

    data: bytes
    parts: int = 1
    """Number of messages that it counts for, because a stream's message carries several items."""
    is_message: bool = True
    is_huge: bool = False
    items: tuple[tuple[str, int], ...] = ()
    """Handle and round of each item."""


class Requests:
    """Draws requests for one method after another."""

    def __init__(self, rng: random.Random, belongings: Belongings) -> None:
        self.rng = rng
        self.belongings = belongings
        self._round = 0
        self._rules = [rule_message(rule, 2**31) for rule in _rules()]
        self._skeletons: dict[str, Callable[[Any], None]] = {
            "GenerateRequest": self._generate,
            "CreateSessionRequest": self._settings,
            "SendMessageRequest": self._send,
            "ChatRequest": self._chat,
            "TokenizeRequest": self._tokenize,
            "DetokenizeRequest": self._detokenize,
            "VerifyItem": self._verify,
            "RunItem": self._run,
            "ProposeItem": self._propose,
            "DraftItem": self._draft,
        }

    def draw(self, method: MethodDescriptor) -> Asked:
        """Return a message for a method."""
        kind = GetMessageClass(method.input_type)
        message = kind()
        parts = _items_field(method)
        count = 1
        if parts is None:
            self._make(message)
        else:
            count = self.rng.choice(_BATCH)
            for _ in range(count):
                self._make(getattr(message, parts.name).add())
        data = message.SerializeToString()
        is_huge = self.rng.random() < _HUGE_ODDS
        if is_huge:
            data += _padding(self.rng.choice(_HUGE))
        elif self.rng.random() < 0.04:
            data = FieldSource(self.rng).bytes_of(data)
            if not is_message(kind, data):
                return Asked(data, is_message=False)
            message = kind.FromString(data)
        is_huge = is_huge or len(data) > _MUCH
        if parts is None:
            return Asked(data, is_huge=is_huge)
        items = tuple((item.handle, item.round) for item in getattr(message, parts.name))
        return Asked(data, max(count, 1), is_huge=is_huge, items=items)

    def _make(self, message: Message) -> None:
        known = [*self.belongings.sessions, *self.belongings.handles]
        source = FieldSource(self.rng, known)
        chance = self.rng.random()
        if chance < 0.1:
            source.arbitrary(message)
        else:
            self._skeleton(message)
            if chance < 0.85:
                source.spoil(message)
        self._leave_others_alone(message)

    def _skeleton(self, message: Any) -> None:
        """Fill a message with correct values for its type, or by its fields' names if the type is
        unknown."""
        make = self._skeletons.get(message.DESCRIPTOR.name)
        if make is not None:
            make(message)
        fields = message.DESCRIPTOR.fields_by_name
        if "session_id" in fields and not message.session_id:
            reading = message.DESCRIPTOR.name.startswith(("Get", "Export", "Watch"))
            message.session_id = self._session(others=reading)
            if message.DESCRIPTOR.name.startswith("Delete") and message.session_id in self.belongings.sessions:
                self.belongings.sessions.remove(message.session_id)
        if "turn" in fields:
            message.turn = self.rng.choice((1, 1, 1, 2, 3))
        if "request_id" in fields and self.rng.random() < 0.4:
            message.request_id = f"{self.rng.randrange(400)}"

    def _leave_others_alone(self, message: Any) -> None:
        """Leave the sessions of others unchanged: a caller that knows their ids may only read
        them."""
        if message.DESCRIPTOR.name.startswith(("Get", "Export", "Watch")):
            return
        for _, value in message.ListFields():
            if isinstance(value, Message):
                self._leave_others_alone(value)
        if "session_id" in message.DESCRIPTOR.fields_by_name and message.session_id in self.belongings.others:
            message.session_id = "no-such-session"

    def _session(self, *, others: bool = False) -> str:
        ids = [*self.belongings.sessions, *(self.belongings.others if others else ())]
        return self.rng.choice(ids) if ids and self.rng.random() < 0.9 else "no-such-session"

    def _generate(self, request: orchestrator_pb2.GenerateRequest) -> None:
        which = self.rng.randrange(3)
        if which == 0:
            request.text = "x" * self.rng.randrange(1, 40)
        elif which == 1:
            request.tokens.token_ids.extend(self.rng.sample(_TOKENS, self.rng.randrange(1, 20)))
        else:
            request.conversation.messages.add(role="ROLE_USER", content="What is len?")
        if self.rng.random() < 0.2:
            request.choice_count = self.rng.randrange(1, 4)
        self._settings(request)
        self._predict(request)

    def _tokenize(self, request: orchestrator_pb2.TokenizeRequest) -> None:
        if self.rng.random() < 0.5:
            request.text = "x" * self.rng.randrange(400)
        else:
            request.conversation.messages.add(role="ROLE_USER", content="What is len?")
        request.token_strings = self.rng.random() < 0.5

    def _detokenize(self, request: orchestrator_pb2.DetokenizeRequest) -> None:
        request.token_ids.extend(self.rng.choices(_TOKENS, k=self.rng.randrange(400)))

    def _settings(self, request: Any) -> None:
        settings = request.settings
        settings.max_token_count = self.rng.randrange(1, _MOST_TOKENS)
        if self.rng.random() < 0.5:
            settings.sampling.temperature = self.rng.choice((0.0, 0.5, 1.0))
            settings.sampling.seed = self.rng.randrange(2**40)
        if self.rng.random() < 0.3:
            settings.speculation.fixed.length = self.rng.randrange(1, 9)
        if self.rng.random() < 0.1:
            settings.logprobs.top_count = self.rng.randrange(21)
        if self.rng.random() < 0.1:
            settings.acceptance = "ACCEPTANCE_RATIO"

    def _send(self, request: orchestrator_pb2.SendMessageRequest) -> None:
        request.session_id, request.content = self._session(), "And?"
        self._settings(request)
        self._predict(request)

    def _predict(self, request: Any) -> None:
        chance = self.rng.random()
        if chance < 0.1:
            request.prediction.text = "x" * self.rng.randrange(1, 400)
        elif chance < 0.2:
            request.prediction.tokens.token_ids.extend(self.rng.choices(_TOKENS, k=self.rng.randrange(1, 400)))

    def _chat(self, request: orchestrator_pb2.ChatRequest) -> None:
        which = self.rng.randrange(4)
        if which == 0:
            request.start.SetInParent()
            if self.rng.random() < 0.4:
                request.start.session_id = self._session()
        elif which == 3:
            request.cancel.turn = self.rng.randrange(3)
        else:
            request.message.content = "And?"
            self._settings(request.message)
            self._predict(request.message)

    def _verify(self, item: verifier_pb2.VerifyItem) -> None:
        self._item(item)
        if self.rng.random() < 0.5:
            item.proposal.extend(self.rng.sample(_TOKENS, self.rng.randrange(1, 9)))

    def _run(self, item: verifier_pb2.RunItem) -> None:
        self._name(item)
        action = self.rng.choices(("start", "grant", "hint", "stop", "close"), (6, 2, 6, 2, 1))[0]
        getattr(item, action).SetInParent()
        if action == "grant":
            item.grant.granted_length = self.rng.choice(_LENGTHS)
        elif action == "hint":
            self._hint(item.hint)
        elif action == "start":
            start = item.start
            start.tail.extend(self.rng.sample(_TOKENS, self.rng.randrange(1, 12)))
            start.until_length = len(start.tail) + self.rng.randrange(1, _MOST_TOKENS)
            start.granted_length = self.rng.choice((start.until_length, len(start.tail) + 1, *_LENGTHS))
            start.rule.CopyFrom(self.rng.choice(self._rules))
            start.takes_ngrams = self.rng.random() < 0.5
            start.takes_heads = self.rng.random() < 0.5
            start.fixed_hint_count = self.rng.choice((0, 0, 4, 2**31 - 1))
            if self.rng.random() < 0.3:
                start.longest_hold.FromMilliseconds(self.rng.choice((0, 10, 2**40)))
            if self.rng.random() < 0.8:
                start.open.SetInParent()

    def _hint(self, hint: hint_pb2.Hint) -> None:
        """Fill a hint with as many survivals as tokens. What it says is seldom right."""
        count = self.rng.randrange(1, 65)
        hint.start = self.rng.choice((*range(24), *_LENGTHS))
        hint.tokens.extend(self.rng.choices(_TOKENS, k=count))
        hint.survivals.extend(sorted((self.rng.random() for _ in range(count)), reverse=True))
        hint.source = self.rng.choice(hint_pb2.HintSource.values()[1:])
        hint.source_id = self.rng.randrange(2**64)
        hint.length_seen = self.rng.choice((hint.start, *_LENGTHS))

    def _draft(self, item: draft_pb2.DraftItem) -> None:
        self._name(item)
        action = self.rng.choices(("start", "commit", "stop", "close"), (6, 6, 2, 1))[0]
        getattr(item, action).SetInParent()
        if action == "commit":
            item.commit.position = self.rng.choice((*range(24), *_LENGTHS))
            item.commit.tokens.extend(self.rng.choices(_TOKENS, k=self.rng.randrange(1, 65)))
            item.commit.price = self.rng.choice((0.0, 1.0, 100.0))
        elif action == "start":
            start = item.start
            start.tail.extend(self.rng.sample(_TOKENS, self.rng.randrange(1, 12)))
            start.until_length = len(start.tail) + self.rng.randrange(1, _MOST_TOKENS)
            start.rule.CopyFrom(self.rng.choice(self._rules))
            start.least_length = self.rng.choice((0, 0, 8, 2**31 - 1))
            start.price = self.rng.choice((0.0, 1.0))
            if self.rng.random() < 0.8:
                start.open.SetInParent()

    def _propose(self, item: draft_pb2.ProposeItem) -> None:
        self._item(item)
        item.draft_length = self.rng.randrange(1, 9)

    def _item(self, item: Any) -> None:
        self._name(item)
        item.tail.extend(self.rng.sample(_TOKENS, self.rng.randrange(1, 12)))
        rule = self.rng.choice(self._rules)
        item.rule_hash = rule_hash(rule)
        if self.rng.random() < 0.8:
            item.rule.CopyFrom(rule)
        if self.rng.random() < 0.8:
            item.open.SetInParent()
        if self.rng.random() < 0.05:
            item.close.SetInParent()

    def _name(self, item: Any) -> None:
        """Name one of this caller's handles, or a new one, and a round."""
        mine = self.belongings.handles
        if not mine or self.rng.random() < 0.3:
            mine.append(self.rng.randbytes(8).hex())
        item.handle = self.rng.choice(mine)
        self._round += self.rng.choice((0, 1, 1, 1, 1, 1))
        item.round = self._round


def _rules() -> Iterator[SamplingRule]:
    yield SamplingRule()
    yield SamplingRule(temperature=1.0, seed=7, top_k=40, top_p=0.9)
    yield SamplingRule(temperature=0.7, seed=8, acceptance=Acceptance.RATIO)
    yield SamplingRule(temperature=0.5, seed=9, repetition_penalty=1.2, logit_bias=((5, 3.0),))


def _items_field(method: MethodDescriptor) -> FieldDescriptor | None:
    """Return the field of a stream's message that holds its items."""
    found: FieldDescriptor | None = method.input_type.fields_by_name.get("items")
    return found if method.client_streaming else None


def _padding(byte_count: int) -> bytes:
    """Return a string in a field that no version has."""
    length = bytearray()
    left = byte_count
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    return b"\xc2\xa9\x07" + bytes([*length, left]) + bytes(byte_count)
