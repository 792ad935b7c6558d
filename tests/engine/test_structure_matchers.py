"""Matchers beside sequences: what rows may choose, however the tokens came and went."""

import gc
from array import array

import pytest
from tokenizers import Tokenizer

from slipstream.engine.errors import InvalidItemError
from slipstream.engine.pages import PagePool
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.engine.structure_matchers import StructureMatchers
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.matcher import Matcher
from slipstream.sampling.matcher_budget import Budget
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler
from slipstream.sampling.structure_errors import StructureFailedError

TOKENIZER_JSON = (embedded_directory("target") / "tokenizer.json").read_bytes()
TOKENIZER = Tokenizer.from_buffer(TOKENIZER_JSON)
PROMPT = [5, 6, 7]
RULE = SamplingRule(
    structure=Structure(StructureKind.REGEX, "[0-9]{6}"), first_generated_position=len(PROMPT), end_token_ids=(2,)
)


def digit(text: str) -> int:
    (token,) = TOKENIZER.encode(text, add_special_tokens=False).ids
    return int(token)


@pytest.fixture
def structures() -> StructureMatchers:
    made = StructureMatchers()
    made.compiler = StructureCompiler(TOKENIZER_JSON, 4096, [2])
    return made


ONE, TWO, LETTER = digit("1"), digit("2"), digit("x")


def test_rows_after_a_guess_that_breaks_the_structure_are_void_and_those_before_are_not(
    structures: StructureMatchers,
) -> None:
    sequence = Sequence("a", array("q", [*PROMPT, ONE, LETTER, TWO]))
    first, second, third = structures.masks(sequence, RULE, 3, committed_length=4)
    assert first is not None and first[TWO] and not first[LETTER]
    assert second is None and third is None


def test_a_window_split_over_two_steps_is_void_where_the_first_ones_guess_broke_it(
    structures: StructureMatchers,
) -> None:
    """The split depends on the batch; whether a turn goes on must not."""
    sequence = Sequence("a", array("q", [*PROMPT, ONE, LETTER]))
    assert structures.masks(sequence, RULE, 2, committed_length=4)[1] is None
    sequence.tokens.append(TWO)
    assert structures.masks(sequence, RULE, 1, committed_length=4) == [None]
    with pytest.raises(InvalidItemError, match="do not fit"):
        structures.masks(sequence, RULE, 1, committed_length=6)


def test_a_rolled_back_sequence_is_as_one_that_never_went_there(structures: StructureMatchers) -> None:
    sequence = Sequence("a", array("q", [*PROMPT, ONE, TWO, TWO]))
    structures.masks(sequence, RULE, 3, committed_length=4)
    sequence.tokens[4:] = array("q", [ONE])
    fresh = StructureMatchers()
    fresh.compiler = structures.compiler
    (rolled,), (made,) = (
        s.masks(t, RULE, 1, committed_length=5)
        for s, t in ((structures, sequence), (fresh, Sequence("b", sequence.tokens)))
    )
    assert rolled is not None and made is not None and (rolled == made).all()


def test_matchers_are_evicted_for_others_and_rebuilt(structures: StructureMatchers) -> None:
    sequences = [Sequence(str(index), array("q", [*PROMPT, ONE])) for index in range(100)]
    for _ in range(2):
        for sequence in sequences:
            (mask,) = structures.masks(sequence, RULE, 1, committed_length=4)
            assert mask is not None and mask[TWO] and not mask[LETTER]


def test_eight_sessions_with_eight_branches_each_make_each_matcher_once(
    structures: StructureMatchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new matcher walks a turn's whole text: one at every step would cost more than the step."""
    made: list[Structure] = []
    compiler = structures.compiler
    assert compiler is not None
    new = compiler.matcher

    def counted(structure: Structure, budget: Budget | None = None) -> Matcher:
        made.append(structure)
        return new(structure, budget)

    monkeypatch.setattr(compiler, "matcher", counted)
    cache = SequenceCache(PagePool(4), 16)
    roots = [Sequence(str(index), array("q", [*PROMPT, ONE])) for index in range(8)]
    forks = [cache.fork(root, f"{root.handle}/{index}") for root in roots for index in range(8)]
    for _ in range(3):
        for sequence in (*roots, *forks):
            (mask,) = structures.masks(sequence, RULE, 1, committed_length=4)
            assert mask is not None and mask[TWO]
    assert len(made) == len(roots) + len(forks)
    for fork in forks:
        structures.forget_sequence(fork)
    assert not structures._forks
    structures.masks(roots[0], RULE, 1, committed_length=4)
    assert len(made) == len(roots) + len(forks)


LIMITED = Structure(StructureKind.REGEX, "(([a-z]{1,100}b?){1,100}c?){1,100}")
"""Some hundred tokens on, the library has gathered as many expressions as it may."""


def rule_of(structure: Structure, first: int = len(PROMPT)) -> SamplingRule:
    return SamplingRule(structure=structure, first_generated_position=first, end_token_ids=(2,))


def test_a_turn_that_fails_leaves_the_sessions_next_turn_alone(structures: StructureMatchers) -> None:
    compiler = structures.compiler
    assert compiler is not None
    held = compiler.validate(LIMITED)
    held._seconds = 1.0  # it cannot be compiled again between steps
    sequence = Sequence("a", array("q", PROMPT))
    rule = rule_of(LIMITED)

    def go_on() -> None:
        for _ in range(300):
            structures.masks(sequence, rule, 1, committed_length=len(sequence))
            sequence.tokens.append(LETTER)

    with pytest.raises(StructureFailedError):
        go_on()
    del sequence.tokens[len(PROMPT) :]
    held = compiler.validate(LIMITED)  # as the next turn does before its first round
    (mask,) = structures.masks(sequence, rule, 1, committed_length=len(sequence))
    assert mask is not None and mask[LETTER]


def test_a_matcher_is_dropped_by_every_way_its_work_can_end(
    structures: StructureMatchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = Sequence("a", array("q", [*PROMPT, ONE]))
    with monkeypatch.context() as patch:
        patch.setattr(Matcher, "masks", lambda self, draft: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            structures.masks(sequence, RULE, 1, committed_length=4)
    assert not structures._matchers


def test_a_budget_is_a_turns_and_its_forks(structures: StructureMatchers, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Budget] = []
    compiler = structures.compiler
    assert compiler is not None
    new = compiler.matcher

    def seen(structure: Structure, budget: Budget | None = None) -> Matcher:
        assert budget is not None
        made.append(budget)
        return new(structure, budget)

    monkeypatch.setattr(compiler, "matcher", seen)
    root, other = (Sequence(name, array("q", [*PROMPT, ONE])) for name in "ab")
    fork = SequenceCache(PagePool(4), 16).fork(root, "a/1")
    for sequence in (root, fork, other):
        structures.masks(sequence, RULE, 1, committed_length=4)
    structures._matchers.clear()  # as if others had taken its place
    structures.masks(root, RULE, 1, committed_length=4)
    structures.masks(root, rule_of(LIMITED, first=4), 1, committed_length=4)
    own, forks, others, again, next_turns = made
    assert own is forks is again and others is not own and next_turns is not own


def test_a_turn_in_debt_fails_once_and_gets_no_new_advance(structures: StructureMatchers) -> None:
    sequence = Sequence("a", array("q", [*PROMPT, ONE]))
    structures.masks(sequence, RULE, 1, committed_length=4)
    ((_, budget),) = structures._budgets.values()
    budget.charge(10)
    with pytest.raises(StructureFailedError, match="processor time a token"):
        structures.masks(sequence, RULE, 1, committed_length=4)
    structures.masks(sequence, RULE, 1, committed_length=4)
    budget.charge(0.1)
    with pytest.raises(StructureFailedError, match="processor time a token"):
        structures.masks(sequence, RULE, 1, committed_length=4)


def test_budgets_go_with_their_sequences(structures: StructureMatchers) -> None:
    sequence = Sequence("a", array("q", [*PROMPT, ONE]))
    structures.masks(sequence, RULE, 1, committed_length=4)
    assert len(structures._budgets) == 1
    structures.forget_sequence(sequence)
    del sequence
    gc.collect()
    assert not structures._budgets
