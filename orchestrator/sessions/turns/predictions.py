"""Predictions: text or tokens that a caller expects in an answer, checked, and as tokens."""

from __future__ import annotations

import hashlib
from array import array
from functools import partial

from orchestrator.rounds.terms import Prediction
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.turns.pair import Pair
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling.rule import Acceptance, SamplingRule

MAX_PREDICTION_TOKENS = 65_536
"""Most tokens of a prediction."""


async def prediction_of(
    pair: Pair, said: str | array[int] | None, rule: SamplingRule, caller: Principal
) -> Prediction | None:
    """Return the prediction that a caller ``said``, for a turn under a ``rule``; None if it said
    none. InvalidFieldsError; OverloadedError if too much text waits to be tokenized."""
    if said is None:
        return None
    if rule.acceptance is Acceptance.RATIO:
        what = "must not be set under acceptance RATIO: its text would depend on the prediction"
        raise _refusal("prediction", what)
    if isinstance(said, str):
        said = await _encoded(pair, said)
    elif not (min(said) >= 0 and max(said) < pair.target.vocabulary_size):
        what = f"must be from 0 to {pair.target.vocabulary_size - 1}"
        raise _refusal("prediction.tokens.token_ids", what)
    return Prediction(said, source_id_of(caller))


def source_id_of(caller: Principal) -> int:
    """Return a caller's id among the sources of predictions, of 64 bits. Verifiers learn for each
    id what its predictions are worth."""
    return int.from_bytes(hashlib.blake2b(caller.name.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


async def _encoded(pair: Pair, text: str) -> array[int]:
    most = pair.limits.max_text_length
    if len(text) > most:
        raise _refusal("prediction.text", f"must have at most {most} characters, but has {len(text)}")
    tokens = await pair.text_work.run(len(text), partial(pair.codec.encode_rendered, text))
    if not 1 <= len(tokens) <= MAX_PREDICTION_TOKENS:
        what = f"must have from 1 to {MAX_PREDICTION_TOKENS} tokens, but has {len(tokens)}"
        raise _refusal("prediction.text", what)
    unknown = next((token for token in tokens if token >= pair.target.vocabulary_size), None)
    if unknown is not None:
        name = pair.codec.token_text(unknown)
        raise _refusal("prediction.text", f"must not have the token {name}: the model has no embedding for it")
    return array("i", tokens)


def _refusal(field: str, what: str) -> InvalidFieldsError:
    return InvalidFieldsError([FieldViolation(field, what)])
