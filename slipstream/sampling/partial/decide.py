"""A target's choice from some of a row's log-probabilities: the token that the whole row would
give, or what to ask for next.

A server that is not ours returns the log-probabilities of the N likeliest tokens, and perhaps those
of ids that it is asked for. Under coupled sampling the token of ``argmax_v(s(v))`` is chosen, with
``s(v) = logprob(v) / temperature - log(arrival(seed, position, v))``
(`slipstream.sampling.coupled`). The arrivals are known beforehand. A token that is not listed has
at most the smallest listed log-probability ``b``, so its score is at most

    b / temperature - log(arrival(v)).

If a listed token's score beats this for every other token, it is the choice, whatever the others
have. Otherwise the tokens whose bounds are not beaten are the only ones that may win, and asking
for them by id decides. (The bound is that of the threshold algorithm, Fagin, Lotem, Naor, "Optimal
aggregation algorithms for middleware", 2003: two sorted lists, the sum of two scores.)

Biases, presence and frequency penalties, banned and allowed tokens and structures change a token's
log-probability by its id alone and keep the order of two numbers. So the bounds are put through the
same compiled code as the numbers, and stay bounds.

The numbers are the server's own: a log-softmax in float32. Subtracting the log-sum-exp moves all
tokens by one number, but for rounding. `slipstream.sampling.partial.known.rounding` bounds what
rounding does: a choice with a smaller margin may differ from that of the raw logits.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.errors import InvalidFieldsError
from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.faults import fault_of
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.sampling.partial.race import best, winner
from slipstream.sampling.partial.refused import refused_fields
from slipstream.sampling.processing import processed
from slipstream.sampling.row import VOID, Choice, Row

MOST_WANTED_IDS = 1024
"""Ids that one request asks for at most."""
_LEAST_GROWTH, _MOST_GROWTH = 2, 16


def decide(known: PartialRow, row: Row) -> Choice | Wanted:
    """Return what a target's ``row`` chooses, if what is ``known`` settles it, or what to ask for.

    The choice is that of `slipstream.sampling.choose.choose` for the server's whole row, or a
    fault as there. Its margin is at most the one there: tokens that are not listed count with
    their bounds. A `Wanted` repeats the ids of ``known``, so that one answer decides: two answers
    of a server may differ in their bits. Raises InvalidFieldsError for a rule that
    `refused_fields` names.
    """
    if row.is_void:
        return Choice(VOID, math.inf)
    if refused := refused_fields(row.rule):
        raise InvalidFieldsError(refused)
    most, least = _bounds(known, row)
    if (fault := fault_of(float(most.max()), row.position)) is not None:
        return Choice(VOID, math.inf, fault=fault)
    choice = winner(most, row.rule, row.position)
    if known.knows(choice.token):
        return choice
    return _wanted(known, row, most, least)


def logprobs_from(known: PartialRow, token: int, top_count: int) -> TokenLogprobs:
    """Return a listed token's log-probability with the ``top_count`` likeliest ones.

    Among equal numbers at the end of the list a server may have listed other ids than the lowest.
    """
    order = np.lexsort((known.token_ids, -known.logprobs))[:top_count]
    top = zip(known.token_ids[order].tolist(), known.logprobs[order].tolist(), strict=True)
    return TokenLogprobs(token, known.logprob(token), tuple(top))


def _bounds(known: PartialRow, row: Row) -> tuple[Floats32, Floats32]:
    """Return the most and the least that each token may have after the row's rule has changed
    it."""
    filled = np.stack([known.filled(float(known.bound)), known.filled(-np.inf)])
    if row.is_processed:
        filled = processed(BlockedLogits(filled), [row, row]).floats()
    return filled[0], filled[1]


def _wanted(known: PartialRow, row: Row, most: Floats32, least: Floats32) -> Wanted:
    """Return what to ask for where a token that is not listed may win: all such tokens, or as many
    likeliest ones as may bring the bound down to the best listed one."""
    reached, leader = -math.inf, known.vocabulary_size
    if least.max() > -np.inf:
        leaders, scores = best(least, row.rule, row.position, 1, 0.0)
        reached, leader = float(scores[0]), int(leaders[0])
    bound = float(best(most, row.rule, row.position, 1, 0.0)[1][0])
    gap = bound - reached
    tokens, scores = best(most, row.rule, row.position, MOST_WANTED_IDS + 1, gap)
    contenders = tokens[(scores > reached) | ((scores == reached) & (tokens < leader))]
    if len(contenders) > MOST_WANTED_IDS and row.rule.temperature == 0:
        contenders = contenders[:0]  # equal bounds: no id is likelier to win than another
    fall = gap * (row.rule.temperature or 1.0)  # in log-probability
    growth = min(max(math.exp(min(fall, _MOST_GROWTH)), _LEAST_GROWTH), _MOST_GROWTH)
    count = min(max(1, math.ceil(known.likeliest_count * growth)), known.vocabulary_size)
    asked = known.token_ids[known.logprobs <= known.bound]  # and the last of the likeliest
    return Wanted(count, tuple(np.union1d(asked, contenders[:MOST_WANTED_IDS]).tolist()))
