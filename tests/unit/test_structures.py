"""Matchers beside sequences: what rows may choose, however the tokens came and went."""

from array import array

import pytest
from tokenizers import Tokenizer

from slipstream.engine.errors import InvalidItemError
from slipstream.engine.pages import PagePool
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.engine.structures import Structures
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.matcher import Matcher
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler

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
def structures() -> Structures:
    made = Structures()
    made.compiler = StructureCompiler(TOKENIZER_JSON, 4096, [2])
    return made


ONE, TWO, LETTER = digit("1"), digit("2"), digit("x")


def test_rows_after_a_guess_that_breaks_the_structure_are_void_and_those_before_are_not(structures: Structures) -> None:
    sequence = Sequence("a", array("q", [*PROMPT, ONE, LETTER, TWO]))
    first, second, third = structures.masks(sequence, RULE, 3, committed_length=4)
    assert first is not None and first[TWO] and not first[LETTER]
    assert second is None and third is None


def test_a_window_split_over_two_steps_is_void_where_the_first_ones_guess_broke_it(structures: Structures) -> None:
    """The split depends on the batch; whether a turn goes on must not."""
    sequence = Sequence("a", array("q", [*PROMPT, ONE, LETTER]))
    assert structures.masks(sequence, RULE, 2, committed_length=4)[1] is None
    sequence.tokens.append(TWO)
    assert structures.masks(sequence, RULE, 1, committed_length=4) == [None]
    with pytest.raises(InvalidItemError, match="do not fit"):
        structures.masks(sequence, RULE, 1, committed_length=6)


def test_a_rolled_back_sequence_is_as_one_that_never_went_there(structures: Structures) -> None:
    sequence = Sequence("a", array("q", [*PROMPT, ONE, TWO, TWO]))
    structures.masks(sequence, RULE, 3, committed_length=4)
    sequence.tokens[4:] = array("q", [ONE])
    fresh = Structures()
    fresh.compiler = structures.compiler
    (rolled,), (made,) = (
        s.masks(t, RULE, 1, committed_length=5)
        for s, t in ((structures, sequence), (fresh, Sequence("b", sequence.tokens)))
    )
    assert rolled is not None and made is not None and (rolled == made).all()


def test_matchers_give_way_to_others_and_are_made_anew(structures: Structures) -> None:
    sequences = [Sequence(str(index), array("q", [*PROMPT, ONE])) for index in range(100)]
    for _ in range(2):
        for sequence in sequences:
            (mask,) = structures.masks(sequence, RULE, 1, committed_length=4)
            assert mask is not None and mask[TWO] and not mask[LETTER]


def test_eight_sessions_with_eight_branches_each_make_each_matcher_once(
    structures: Structures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matcher made anew walks a turn's whole text: at every step, that would cost more than the step."""
    made: list[Structure] = []
    compiler = structures.compiler
    assert compiler is not None
    new = compiler.matcher

    def counted(structure: Structure) -> Matcher:
        made.append(structure)
        return new(structure)

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
        structures.forget(fork)
    assert not structures._forks
    structures.masks(roots[0], RULE, 1, committed_length=4)
    assert len(made) == len(roots) + len(forks)
