"""The target continues by itself, and the orchestrator relays what it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.run_parts import Part
from orchestrator.proposers.proposer import Figures
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.parties import Parties
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import Source
from slipstream.telemetry import names


def is_relayed(terms: RoundTerms) -> bool:
    """Return whether a turn under these terms is decoded by a run. The ratio test's text depends on
    what is proposed, so its rounds are asked for one by one."""
    return not terms.rule.draws_ratios


async def next_result(
    parties: Parties, session: SessionRounds, tokens: list[int], terms: RoundTerms, room: int, note: RoundNote
) -> RoundResult:
    """Return what the target chooses after the committed ``tokens``: one step of its run, or a
    stretch of steps without hints."""
    parties.running.add(session)
    note.session_count = len(parties.running)
    kept = session.run.take_kept(len(tokens))
    if kept is not None:
        exchange = note.begin_verify(names.VERIFY)
        exchange.address = session.verifier.address or ""
        exchange.finish(kept.verify)
        return kept
    draft = parties.drafts.fingerprint_of(session.drafting)
    part = await parties.verifying.next_part(session.run, tokens, terms, room, note)
    draft = draft or parties.drafts.fingerprint_of(session.drafting)  # the turn's first part finds a draft
    makers = [parties.drafts.maker_of(session.drafting, step.source_id) or draft for step in part.steps]
    first, *others = _with_figures(_results(part, makers), session.run.take_figures())
    session.run.keep(len(tokens) + len(first.tokens), others)
    assert note.verify is not None, "a part was waited for"
    note.verify.timing = first.verify
    return first


def _with_figures(results: list[RoundResult], figures: Sequence[Figures]) -> list[RoundResult]:
    """Return results with what the proposers did: it belongs to the first that used a draft, if one
    did."""
    works = [work for each in figures for work in each.works]
    index = next((index for index, result in enumerate(results) if result.source is Source.DRAFT), 0)
    results[index] = results[index]._replace(
        works=works,
        drafted=[work.timing for work in works if work.timing is not None],
        draft_failed=any(work.error is not None for work in works),
        switched_off=any(each.is_switched_off for each in figures),
    )
    return results


def _results(part: Part, drafts: Sequence[str]) -> list[RoundResult]:
    """Return the results of a part's steps, in their order. ``drafts`` are the drafts that may have
    made the hint of each step, by their fingerprints."""
    results = []
    ends = [part.arrived]
    for step in reversed(part.steps):
        ends.append(ends[-1] - step.timing.round_trip - step.held)
    moments = pairwise(reversed(ends))
    start = 0
    for step, (began, ended), draft in zip(part.steps, moments, drafts, strict=True):
        end = start + step.token_count
        results.append(
            RoundResult(
                tokens=part.tokens[start:end],
                proposal_length=step.hint_count,
                source=step.source,
                accepted_count=step.accepted_count,
                prefilled_count=0 if start else part.prefilled_count,
                verify=step.timing,
                waited=step.held,
                awaited=PeerTiming(0.0, step.held, step.held, step.held) if step.held else None,
                drafted=[],
                draft_failed=False,
                switched_off=False,
                margin=part.margin,
                logprobs=part.logprobs[start:end],
                prompt_logprobs=() if start else part.tail_logprobs,
                moments=(began, ended),
                draft=draft,
            )
        )
        start = end
    return results
