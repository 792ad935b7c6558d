"""A target's choice from some of a row's log-probabilities: the token that the whole row would
give, or what to ask for next.

A server that is not ours returns the log-probabilities of the N likeliest tokens, and perhaps those
of ids that it is asked for. Under coupled sampling the token of ``argmax_v(s(v))`` is chosen, with
``s(v) = logprob(v) / temperature - log(arrival(seed, position, v))``
(`slipstream.sampling.coupled`). The arrivals are known beforehand. A token that is not listed has
at most the smallest listed log-probability ``b``, so its score is at most

    b / temperature - log(arrival(v)).

If a listed token's score beats this for every other token, that token is the choice. Otherwise the
tokens whose bounds are not beaten are the only ones that may win, and asking for them by id
decides. A server that tells the likeliest of them alone bounds the others by it. (The bound is that
of the threshold algorithm, Fagin, Lotem, Naor, "Optimal aggregation algorithms for middleware",
2003: two sorted lists, the sum of two scores.)

Biases, presence and frequency penalties, banned and allowed tokens and structures change a token's
log-probability by its id alone and keep the order of two numbers. So the bounds are put through the
same compiled code as the numbers, and stay bounds. Filters cut between two bounds
(`slipstream.sampling.partial.cut`).

The numbers are the server's own: a log-softmax in float32. Subtracting the log-sum-exp moves all
tokens by one number, but for rounding. `slipstream.sampling.partial.known.rounding` bounds what
rounding does: a choice with a smaller margin may differ from that of the raw logits.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from slipstream.errors import InvalidFieldsError
from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.coupled import choose_coupled
from slipstream.sampling.faults import fault_of
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.sampling.partial.cut import NO_CUT, Bounded, Cut, Others, min_p_cut, top_k_cut, top_p_cut, widened
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.sampling.partial.race import best, winner
from slipstream.sampling.partial.refused import refused_fields
from slipstream.sampling.processing import processed
from slipstream.sampling.row import VOID, Choice, Row

MOST_WANTED_IDS = 256
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
    bounds = bounded(known, row)
    if (fault := fault_of(float(bounds.most.max()), row.position)) is not None:
        return Choice(VOID, math.inf, fault=fault)
    if row.rule.temperature == 0:
        return _decided(bounds, row, NO_CUT)
    top_k, min_p = top_k_cut(bounds, row.rule), min_p_cut(bounds, row.rule)
    top_p = top_p_cut(bounds, row.rule, top_k)
    cut = top_k.and_also(min_p).and_also(top_p)
    if cut == NO_CUT:
        return _decided(bounds, row, cut)
    others = bounds.others
    if others.largest < top_k.least or others.largest == -np.inf:  # they count for nothing
        outcome: Choice | Wanted = choose_coupled(BlockedLogits(bounds.least[np.newaxis]), [row.rule], [row.position])[
            0
        ]
    else:
        outcome = _decided(bounds, row, cut)
    if isinstance(outcome, Wanted):
        return outcome
    wide = widened(top_k, bounds, is_one_there=True).and_also(widened(min_p, bounds)).and_also(top_p)
    return _with_edges(outcome, bounds, row, wide)


def logprobs_from(known: PartialRow, token: int, top_count: int) -> TokenLogprobs:
    """Return a listed token's log-probability with the ``top_count`` likeliest ones.

    Among equal numbers at the end of the list a server may have listed other ids than the lowest.
    """
    order = np.lexsort((known.token_ids, -known.logprobs))[:top_count]
    top = zip(known.token_ids[order].tolist(), known.logprobs[order].tolist(), strict=True)
    return TokenLogprobs(token, known.logprob(token), tuple(top))


def bounded(known: PartialRow, row: Row) -> Bounded:
    """Return the most and the least that each token may have after a row's rule has changed it."""
    most, least = known.most(), known.least()
    if row.is_processed:
        most, least = processed(BlockedLogits(np.stack([most, least])), [row, row]).floats()
    elif not len(known.caps):
        return Bounded(known, most, least, Others.of_bound(known))
    return Bounded(known, most, least, Others.of_values(known, most))


def _decided(bounds: Bounded, row: Row, cut: Cut) -> Choice | Wanted:
    choice = winner(_from(bounds.most, cut.least), row.rule, row.position)
    if bounds.known.knows(choice.token) and bounds.most[choice.token] >= cut.most:
        return choice
    return _wanted(bounds, row, cut, choice.token)


def _from(values: Floats32, least: np.float32) -> Floats32:
    if least == -np.inf:
        return values
    kept: Floats32 = np.where(values >= least, values, np.float32(-np.inf))
    return kept


def _with_edges(choice: Choice, bounds: Bounded, row: Row, wide: Cut) -> Choice:
    """Return a choice, its margin 0 if a cut between these bounds may lead to another choice."""
    is_sure = bounds.most[choice.token] >= wide.most
    if is_sure and winner(_from(bounds.most, wide.least), row.rule, row.position).token == choice.token:
        return choice
    return replace(choice, margin=0.0)


def _wanted(bounds: Bounded, row: Row, cut: Cut, token: int) -> Wanted:
    """Return what to ask for where ``token`` wins unless what is not known prevents it: all tokens
    that may win, or as many likeliest ones as may settle it."""
    known, rule = bounds.known, row.rule
    most, sure = _from(bounds.most, cut.least), _from(bounds.least, cut.most)
    reached, leader = -math.inf, known.vocabulary_size
    if sure.max() > -np.inf:
        leaders, scores = best(sure, rule, row.position, 1, 0.0)
        reached, leader = float(scores[0]), int(leaders[0])
    gap = float(best(most, rule, row.position, 1, 0.0)[1][0]) - reached
    tokens, scores = best(most, rule, row.position, MOST_WANTED_IDS + 1, gap)
    contenders = tokens[(scores > reached) | ((scores == reached) & (tokens < leader))]
    if len(contenders) > MOST_WANTED_IDS and rule.temperature == 0:
        contenders = contenders[:0]  # equal bounds: no id is likelier to win than another
    asked = known.token_ids[known.logprobs <= known.bound]  # and the last of the likeliest
    wanted_ids = np.union1d(asked, contenders[:MOST_WANTED_IDS])
    # How far the bound must fall, in log-probability.
    fall = float(known.bound) - known.logprob(token) if known.knows(token) else gap * (rule.temperature or 1.0)
    return Wanted(_more(known, fall), tuple(wanted_ids.tolist()))


def _more(known: PartialRow, fall: float) -> int:
    """Return how many likeliest tokens to ask for, if the bound must fall so far: as by Zipf's law,
    by which a token's probability is in inverse proportion to its rank."""
    growth = min(max(math.exp(min(fall, _MOST_GROWTH)), _LEAST_GROWTH), _MOST_GROWTH)
    return min(max(1, math.ceil(known.likeliest_count * growth)), known.vocabulary_size)
