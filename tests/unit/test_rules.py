"""Rules are stated once for a handle: what a service keeps of them, and what the orchestrator
counts on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from orchestrator.peers.sequence import PeerSequence
from slipstream.agreed import RULES_PER_HANDLE
from slipstream.hosting.rules import RuleBook, UnknownRuleError
from slipstream.rpc.sampling_wire import rule_hash, rule_message, rule_of
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.sampling.structure import Structure, StructureKind

FULL = SamplingRule(
    temperature=0.5,
    top_k=7,
    top_p=0.75,
    min_p=0.25,
    seed=2**63 - 1,
    end_token_ids=(2, 9),
    first_end_position=17,
    typical_p=0.5,
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    logit_bias=((3, 1.5), (4, -2.0)),
    allowed_token_ids=(3, 4, 5),
    banned_token_ids=(6,),
    first_generated_position=11,
    structure=Structure(StructureKind.REGEX, "a+"),
    acceptance=Acceptance.RATIO,
    proposal_top_k=5,
)


def hash_of(rule: SamplingRule) -> int:
    return rule_hash(rule_message(rule, 100))


@pytest.mark.parametrize("rule", [SamplingRule(), FULL], ids=["plain", "full"])
def test_a_rule_survives_the_wire(rule: SamplingRule) -> None:
    assert rule_of(rule_message(rule, 100), 100) == rule


def test_what_a_rule_lists_is_laid_out_once() -> None:
    rule = replace(FULL)
    assert rule == FULL and rule.ends == {2, 9} and rule.ends is rule.ends
    assert [array.tolist() for array in rule.listed] == [[2, 9], [3, 4, 5], [6], [3, 4], [1.5, -2.0]]
    assert rule.listed is rule.listed and rule == FULL and rule_of(rule_message(rule, 100), 100) == rule


def test_equal_rules_have_one_hash_and_others_another() -> None:
    rules = [SamplingRule(), FULL, replace(FULL, temperature=0.25), replace(FULL, logit_bias=((3, 1.5), (4, -2.5)))]
    assert hash_of(replace(FULL)) == hash_of(FULL) != 0
    assert len(set(map(hash_of, rules))) == len(rules)


def test_a_handle_keeps_its_last_few_rules_and_no_other_handles() -> None:
    book = RuleBook()
    rules = [SamplingRule(seed=seed) for seed in range(RULES_PER_HANDLE + 1)]
    for number, rule in enumerate(rules[:-1], 1):
        book.store_rule("h", number, rule, 10)
    assert book.find_rule("h", 1) is rules[0]  # and it is the latest now
    book.store_rule("h", len(rules), rules[-1], 10)
    assert book.find_rule("h", 1) is rules[0] and book.find_rule("h", len(rules)) is rules[-1]
    for handle, number in (("h", 2), ("other", 1)):
        with pytest.raises(UnknownRuleError, match=r"rule 0x.*send the rule again"):
            book.find_rule(handle, number)
    assert book.byte_count == RULES_PER_HANDLE * 10
    book.forget_handle("h")
    with pytest.raises(UnknownRuleError):
        book.find_rule("h", 1)
    assert book.byte_count == 0


def test_past_a_bound_the_handle_that_was_idle_longest_states_its_rule_again() -> None:
    book = RuleBook(max_bytes=100)
    for handle in ("a", "b", "c"):
        book.store_rule(handle, 1, FULL, 30)
    book.store_rule("c", 1, FULL, 30)  # stated twice, kept once
    book.find_rule("a", 1)
    book.store_rule("d", 1, FULL, 30)
    with pytest.raises(UnknownRuleError):
        book.find_rule("b", 1)
    assert all(book.find_rule(handle, 1) is FULL for handle in ("a", "c", "d"))
    book.store_rule("large", 1, FULL, 1_000)
    assert book.find_rule("large", 1) is FULL, "one handle's rules are kept at any size"


def test_a_rule_is_hashed_once_and_stated_until_an_answer_shows_that_the_peer_knows_it() -> None:
    sequence, hashed = PeerSequence(), []

    def counted(rule: SamplingRule) -> int:
        hashed.append(rule)
        return hash_of(rule)

    first = sequence.state(FULL, counted)
    assert not first.is_told
    sequence.answered("another handle", first)
    assert not sequence.is_open and not sequence.state(replace(FULL), counted).is_told
    sequence.answered(sequence.handle, first)
    assert sequence.is_open and sequence.state(replace(FULL), counted) is first and first.is_told
    assert len(hashed) == 1
    sequence.correct(sequence.handle, "UNKNOWN_RULE", {})
    assert not sequence.state(FULL, counted).is_told and sequence.is_open
    sequence.answered(sequence.handle, sequence.state(FULL, counted))
    sequence.forget()
    assert not sequence.state(FULL, counted).is_told and not sequence.is_open


def test_a_sequence_states_a_rule_again_exactly_if_the_service_has_forgotten_it() -> None:
    sequence, book, rng = PeerSequence(), RuleBook(), random.Random(3)
    for _ in range(500):
        rule = SamplingRule(seed=rng.randrange(RULES_PER_HANDLE + 2))
        stated = sequence.state(rule, hash_of)
        try:
            known = book.find_rule("h", stated.hash) == rule
        except UnknownRuleError:
            known = False
        assert stated.is_told == known
        book.store_rule("h", stated.hash, rule, 1)
        sequence.answered(sequence.handle, stated)


def test_a_sequence_counts_on_no_more_rules_than_a_service_keeps() -> None:
    sequence, book = PeerSequence(), RuleBook()
    for seed in (0, 1, 2, 0, 3, 4, 0, 1, 4, 5, 6, 7, 8, 0):
        rule = SamplingRule(seed=seed)
        stated = sequence.state(rule, hash_of)
        if not stated.is_told:
            book.store_rule("h", stated.hash, rule, 1)
        assert book.find_rule("h", stated.hash) == rule
        sequence.answered(sequence.handle, stated)
