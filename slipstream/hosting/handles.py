"""Handles of sequences, as items of both services open, use and close them.

Wire types and the engine host meet here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from slipstream.agreed import WIRE_VERSION
from slipstream.engine.errors import ContextExceededError
from slipstream.engine.host import JobHost
from slipstream.errors import (
    FieldViolation,
    InvalidFieldsError,
    TokenizerMismatchError,
    WeightsMismatchError,
    WireVersionError,
)
from slipstream.hosting.rules import RuleBook
from slipstream.rpc.item_answers import peer_of
from slipstream.rpc.sampling_wire import rule_of
from slipstream.rpc.wire import seconds
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, model_pb2, verifier_pb2

_SHORTEST_NAME, _LONGEST_NAME = 16, 64


class Handles:
    """Handles of one engine host, with the rules that callers have stated for them."""

    def __init__(self, host: JobHost[Any], model: model_pb2.ModelInfo) -> None:
        """``model`` is the information that the host's callers get."""
        self._host = host
        self._model = model
        self._rules = RuleBook()
        self._forgetting: list[Callable[[str], None]] = [self._rules.forget_handle]
        host.on_closed = self._forget

    @property
    def weights_fingerprint(self) -> str:
        """The fingerprint of the model's weights, as `ModelInfo` has it."""
        return self._model.weights_fingerprint

    def on_closed(self, forget: Callable[[str], None]) -> None:
        """Call ``forget`` with the name of each handle that is closed, for any reason."""
        self._forgetting.append(forget)

    def _forget(self, handle: str) -> None:
        for forget in self._forgetting:
            forget(handle)

    def of_caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> PeerHandles:
        """Return the handles of the peer that has opened a stream. The peer counts as present until
        its last stream has ended."""
        peer = peer_of(context)
        self._host.owners.record_connection(peer)
        # A callback is called at every end of the stream, even if its generator is only collected.
        context.add_done_callback(lambda _: self._host.owners.record_disconnection(peer))  # type: ignore[arg-type]  # any callable will do
        return PeerHandles(peer, self._host, self._model, self._rules)


class PeerHandles:
    """Handles that one peer has opened. A handle is a name within its peer: no other peer can use
    it."""

    def __init__(self, peer: str, host: JobHost[Any], model: model_pb2.ModelInfo, rules: RuleBook) -> None:
        self._peer = peer
        self._host = host
        self._model = model
        self._rules = rules

    def open_handle(
        self,
        handle: str,
        item: draft_pb2.ProposeItem | draft_pb2.StartDraft | verifier_pb2.VerifyItem | verifier_pb2.StartRun,
    ) -> str:
        """Open a handle if an item for it asks for that, and return its name on the host.

        ContextExceededError, WireVersionError, TokenizerMismatchError, WeightsMismatchError,
        InvalidFieldsError, SequenceLimitError or UnknownHandleError.
        """
        self._check_length(len(item.tail))
        name = self.name_of(handle)
        if item.HasField("open"):
            self._open(name, item.open, len(handle))
        self._host.renew_lease(name)
        return name

    def resolve(self, item: draft_pb2.ProposeItem | verifier_pb2.VerifyItem) -> tuple[str, SamplingRule]:
        """Open the handle of an item if the item asks for that, and find its sampling rule.

        Returns the handle's name on the host, and the rule. UnknownRuleError; raises what
        `open_handle` raises.
        """
        name = self.open_handle(item.handle, item)
        if not item.rule_hash:
            raise InvalidFieldsError([FieldViolation("rule_hash", "must be set: it names the sampling rule")])
        if not item.HasField("rule"):
            return name, self._rules.find_rule(name, item.rule_hash)
        rule = rule_of(item.rule, self._model.vocabulary_size)
        self._rules.store_rule(name, item.rule_hash, rule, item.rule.ByteSize())
        return name, rule

    def close_handle(self, handle: str) -> None:
        """Free a handle's pages, and never open the handle again. Does nothing if the handle is too
        long to be opened."""
        if len(handle) <= _LONGEST_NAME:
            self._host.close_handle(self.name_of(handle))

    def name_of(self, handle: str) -> str:
        """Return a handle's name on the host. The part after ``@`` has a fixed length, so two peers
        never share a name."""
        return f"{handle}@{self._peer}"

    def _open(self, name: str, terms: model_pb2.OpenSequence, length: int) -> None:
        if not _SHORTEST_NAME <= length <= _LONGEST_NAME:
            limit = f"must have {_SHORTEST_NAME} to {_LONGEST_NAME} characters to be opened, but has {length}"
            raise InvalidFieldsError([FieldViolation("handle", limit)])
        self._compare(terms)
        lease = seconds(terms.lease) if terms.HasField("lease") else None
        if lease is not None and lease <= 0:
            raise InvalidFieldsError([FieldViolation("open.lease", f"must be above 0 s, but is {lease:g} s")])
        self._host.open_handle(name, lease, self._peer)

    def _check_length(self, count: int) -> None:
        """Refuse a tail that is too long before it is read: 64 MiB of it would take gigabytes and
        seconds. ContextExceededError."""
        most = self._host.served.context_length
        if count > most:
            raise ContextExceededError(f"{count} tokens do not fit into the context of {most}", context_length=most)

    def _compare(self, terms: model_pb2.OpenSequence) -> None:
        if terms.wire_version and terms.wire_version != WIRE_VERSION:
            raise WireVersionError(terms.wire_version, WIRE_VERSION)
        name = self._model.name
        asked, own = terms.tokenizer_fingerprint, self._model.tokenizer_fingerprint
        if asked and asked != own:
            raise TokenizerMismatchError(
                f"the caller's tokenizer is {asked}, but {name} has {own}", asked=asked, own=own
            )
        asked, own = terms.weights_fingerprint, self._model.weights_fingerprint
        if asked and asked != own:
            raise WeightsMismatchError(
                f"the tokens come from weights {asked}, but {name} has {own}", asked=asked, own=own
            )
