"""Handles as items open, use and close them: the same for draft and verifier. Wire types and the engine host meet here."""

from __future__ import annotations

from typing import Any

from slipstream.engine.host import EngineHost
from slipstream.errors import FieldViolation, InvalidFieldsError, TokenizerMismatchError, WeightsMismatchError
from slipstream.hosting.rules import RuleBook
from slipstream.rpc.sampling_wire import rule_of
from slipstream.rpc.wire import seconds
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, model_pb2, verifier_pb2

_SHORTEST_NAME, _LONGEST_NAME = 16, 64


class Handles:
    """The handles of one host: on what terms they are opened, and which rules they have been told."""

    def __init__(self, host: EngineHost[Any], model: model_pb2.ModelInfo) -> None:
        """``model`` is what the host's clients are told of it."""
        self._host = host
        self._model = model
        self._rules = RuleBook()
        host.on_closed = self._rules.forget

    def begin(self, item: draft_pb2.ProposeItem | verifier_pb2.VerifyItem) -> SamplingRule:
        """Open an item's handle if it asks for that, and find the rule that it states or names.

        TokenizerMismatchError, WeightsMismatchError, InvalidFieldsError, SequenceLimitError, UnknownHandleError or
        UnknownRuleError.
        """
        if item.HasField("open"):
            self._open(item.open, item.handle)
        self._host.renew(item.handle)
        if not item.rule_hash:
            raise InvalidFieldsError([FieldViolation("rule_hash", "must be set: it names the rule to choose by")])
        if not item.HasField("rule"):
            return self._rules.find(item.handle, item.rule_hash)
        rule = rule_of(item.rule)
        self._rules.keep(item.handle, item.rule_hash, rule, item.rule.ByteSize())
        return rule

    def close(self, handle: str) -> None:
        """Give a handle's pages back; nothing happens if it is not open."""
        self._host.close(handle)

    def _open(self, terms: model_pb2.OpenSequence, handle: str) -> None:
        if not _SHORTEST_NAME <= len(handle) <= _LONGEST_NAME:
            length = f"must have {_SHORTEST_NAME} to {_LONGEST_NAME} characters to be opened, but has {len(handle)}"
            raise InvalidFieldsError([FieldViolation("handle", length)])
        self._compare(terms)
        lease = seconds(terms.lease) if terms.HasField("lease") else None
        if lease is not None and lease <= 0:
            raise InvalidFieldsError([FieldViolation("open.lease", f"must be above 0 s, but is {lease:g} s")])
        self._host.open(handle, lease)

    def _compare(self, terms: model_pb2.OpenSequence) -> None:
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
