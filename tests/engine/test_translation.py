"""Text between two vocabularies: however it is cut, the draft reads the same tokens, and what it
guesses is told in the target's own tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from draft_service.door import Start
from draft_service.translation.guesses import translate_guess
from draft_service.translation.respelling import Respelling, incomplete_end
from draft_service.translation.spelling import Spelling
from draft_service.translation.translated import Translation, TwoVocabularies
from draft_service.translation.vocabularies import Vocabularies
from slipstream.engine.errors import SequenceTooShortError
from slipstream.engine.hinting.hints import Hint, Source
from slipstream.hosting.tokenizer_files import TokenizerFiles
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind

TEXT = (
    "What does os.path.join do? It joins one or more path components, and don't you forget it!\n\n"
    "  def main(arguments: list[str]) -> int:\n\treturn 12345 + len(arguments)\n"
    "Zürich, naïve café; 東京は日本の首都です。 Привет мир 🙂👩‍💻 fin... (see [1], [2])\n"
)
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|pad|>", "<|end|>", "<|begin|>"]


def files_of(tokenizer: Tokenizer, **named: str) -> TokenizerFiles:
    return TokenizerFiles(
        {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(named).encode()},
        "",
        tokenizer.get_vocab_size(),
    )


@functools.cache
def byte_level(size: int, pattern: str = "", special: tuple[str, ...] = tuple(SPECIAL)) -> Spelling:
    """Byte-level BPE of GPT-2's words, or of another pattern's."""
    tokenizer = Tokenizer(models.BPE())
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT, "the target chooses every token of the text, and the draft guesses"], trainer)
    return Spelling(files_of(tokenizer, eos_token=special[1], bos_token=special[2], pad_token=special[0]))


@functools.cache
def pieces_of_text(size: int = 400) -> Spelling:
    """SentencePiece's kind: words begin with a mark, a text with one too, and what is unknown is
    bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    letters = sorted({letter for letter in TEXT.replace(" ", "▁") if letter.isascii() or letter == "▁"})
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    words = ["▁" + word for line in TEXT.splitlines() for word in line.split() if word.isascii()]
    tokenizer.train_from_iterator([[word] for word in words], trainer)
    return Spelling(files_of(tokenizer, eos_token="</s>", bos_token="<s>", unk_token="<unk>"))


@functools.cache
def lower_case() -> Spelling:
    tokenizer = Tokenizer.from_str(byte_level(500)._tokenizer.to_str())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return Spelling(files_of(tokenizer, eos_token=SPECIAL[1]))


DRAFTS: dict[str, Callable[[], Spelling]] = {
    "byte-level": lambda: byte_level(420),
    "other words": lambda: byte_level(420, LLAMA3, ("<|end|>", "<eos>", "<|pad|>")),
    "larger": lambda: byte_level(900, LLAMA3),
    "pieces": pieces_of_text,
}


TARGET = functools.partial(byte_level, 700)


def pair(draft: Spelling) -> Vocabularies:
    return Vocabularies(TARGET(), draft, ())


def whole(draft: Spelling, text: str) -> list[int]:
    return draft.encode(text).tokens


def told(translation: Translation) -> list[int]:
    """The draft's tokens, stable or not."""
    return [*translation.respelling.tokens, *translation.respelling.rest]


texts = st.one_of(
    st.text(alphabet="ab .'\n\t1(<|é京🙂", max_size=60),
    st.integers(0, len(TEXT) - 1).flatmap(lambda at: st.just(TEXT[at : at + 120])),
    st.lists(st.sampled_from(TEXT.split(" ")), max_size=20).map(" ".join),
)


@settings(max_examples=150, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(1, 5), max_size=80), name=st.sampled_from(sorted(DRAFTS)))
def test_any_split_of_commits_gives_the_same_draft_tokens_as_the_whole(
    text: str, cuts: Sequence[int], name: str
) -> None:
    draft = DRAFTS[name]()
    tokens = TARGET().encode("The text: " + text).tokens
    translation = Translation(pair(draft))
    translation.state(0, tokens[:1])
    at, stable = 1, [*translation.respelling.tokens]
    for count in [*cuts, len(tokens)]:
        stable += translation.add(tokens[at : at + count])
        assert stable == [*translation.respelling.tokens]  # stable tokens stay
        at += count
    assert translation.respelling.text == "The text: " + text
    assert told(translation) == whole(draft, "The text: " + text)


@settings(max_examples=100, deadline=None)
@given(first=texts, second=texts, keep=st.integers(0, 60), name=st.sampled_from(sorted(DRAFTS)))
def test_a_position_stated_again_gives_the_draft_tokens_of_the_new_text(
    first: str, second: str, keep: int, name: str
) -> None:
    draft, target = DRAFTS[name](), TARGET()
    tokens = target.encode("Begin. " + first).tokens
    translation = Translation(pair(draft))
    translation.state(0, tokens)
    keep = min(keep, len(tokens))
    tail = target.encode(" and " + second).tokens
    translation.state(keep, tail)
    text = target.text_bytes([*tokens[:keep], *tail]).decode(errors="replace")
    assert translation.respelling.text == text
    assert told(translation) == whole(draft, text)


@settings(max_examples=100, deadline=None)
@given(before=texts, after=texts, said=st.integers(0, 3))
def test_a_guess_is_told_in_the_tokens_of_the_targets_tokenizer(before: str, after: str, said: int) -> None:
    draft, target = byte_level(420, LLAMA3), TARGET()
    before = "So it goes: " + before + " end"
    guessed = draft.encode(" of it " + after).tokens
    survivals = [0.9**index for index in range(1, len(guessed) + 1)]
    tokens, odds = translate_guess(pair(draft), before, guessed, survivals, 0, (1,))
    assert len(tokens) == len(odds)
    expected = target.encode(before + " of it " + after)
    begin = expected.index_at(len(before))
    assert begin is not None
    assert list(tokens) == expected.tokens[begin : begin + len(tokens)]
    assert list(odds) == sorted(odds, reverse=True)
    assert begin + len(tokens) >= len(target.encode(before + " of it " + after).tokens) - 1


def test_the_survival_of_a_token_is_that_of_the_guess_that_reaches_its_end() -> None:
    draft, target = byte_level(300), TARGET()
    guessed = draft.encode(" components, and").tokens
    survivals = [1 - index / 100 for index in range(len(guessed))]
    tokens, odds = translate_guess(pair(draft), "path", guessed, survivals, 0, ())
    assert list(tokens) == target.encode(" components, and").tokens[: len(tokens)]
    assert len(tokens) == len(target.encode(" components, and").tokens) - 1
    ends = [len(draft.text_bytes(guessed[: index + 1])) for index in range(len(guessed))]
    for index, odd in enumerate(odds):
        length = len(target.text_bytes(tokens[: index + 1]))
        assert odd == next(s for s, end in zip(survivals, ends, strict=True) if end >= length)


def test_the_drafts_end_is_the_targets() -> None:
    other = byte_level(420, LLAMA3, ("<|end|>", "<eos>", "<|pad|>"))
    guessed = [*other.encode(" fin").tokens, other.special_ids["<eos>"], 5]
    tokens, odds = translate_guess(pair(other), "and", guessed, [0.9] * (len(guessed) - 2) + [0.5, 0.4], 0, (77, 78))
    assert list(tokens) == [*TARGET().encode(" fin").tokens, 77]
    assert odds[-1] == 0.5


def test_special_tokens_are_those_of_the_same_text_or_their_text() -> None:
    target, other = TARGET(), byte_level(420, LLAMA3, ("<|pad|>", "<eos>", "<bos>"))
    both = Vocabularies(target, other, ())
    assert both.piece(target.special_ids["<|pad|>"]) == b"<|pad|>"  # the draft has it
    assert both.piece(target.special_ids["<|end|>"]) == b"<eos>"  # of the same name
    assert both.piece(10**6) == b""  # a row of the logits without a token
    again = Vocabularies(target, byte_level(420, "", ("<a>", "<b>", "<c>")), ())
    assert again.piece(target.special_ids["<|pad|>"]) == b""


def test_the_end_tokens_of_a_rule_are_ends_in_its_own_text_alone() -> None:
    target = TARGET()
    door = TwoVocabularies(Vocabularies(target, byte_level(420, LLAMA3, ("<x>", "<eos>", "<y>")), ()), 4096)
    begin = target.special_ids["<|begin|>"]
    tokens = [*target.encode("user: hello").tokens, begin, *target.encode("bot:").tokens]

    def text_of(handle: str, *ends: int) -> str:
        start = Start(0, tokens, 4000, 0, 0.0, SamplingRule(end_token_ids=ends, banned_token_ids=ends))
        telling = door.open(handle, start)
        telling.begin()
        return door._translations[handle].respelling.text

    before = text_of("a", 1)
    assert "hellobot" in before
    assert "hello<eos>bot" in text_of("b", 1, begin)
    assert text_of("c", 1) == text_of("a", 1) == before
    assert door.vocabularies.target_ends == (target.special_ids["<|end|>"],)


def test_a_rule_keeps_what_both_vocabularies_can_say() -> None:
    target, draft = TARGET(), byte_level(420, LLAMA3)
    both = pair(draft)
    shared, alone = target.encode("a").tokens[0], target.encode(" components").tokens[0]
    rule = SamplingRule(
        temperature=0.9,
        seed=3,
        end_token_ids=(1,),
        banned_token_ids=(shared, alone),
        logit_bias=((shared, 2.0), (alone, 3.0)),
        allowed_token_ids=(shared,),
        structure=Structure(StructureKind.REGEX, "a+"),
    )
    own = both.rule(rule, first_end=7, first_generated=9)
    token = draft.encode("a").tokens[0]
    assert own.temperature == 0
    assert own.end_token_ids == both.draft_ends
    assert own.banned_token_ids[0] == token
    assert own.logit_bias[0] == (token, 2.0)
    assert own.allowed_token_ids == (token,)
    assert own.structure is None
    assert (own.first_end_position, own.first_generated_position) == (7, 9)


def test_a_lower_case_draft_reads_what_is_committed() -> None:
    translation = Translation(Vocabularies(TARGET(), lower_case(), ()))
    tokens = TARGET().encode("Hello WORLD, Zürich and More words").tokens
    translation.state(0, tokens[:2])
    for token in tokens[2:]:
        translation.add([token])
    assert told(translation) == lower_case().encode("Hello WORLD, Zürich and More words").tokens


def test_half_a_character_waits_for_its_other_bytes() -> None:
    draft = byte_level(300)
    tokens = TARGET().encode("x 👩").tokens
    both = pair(draft)
    halves = [index for index in range(len(tokens)) if incomplete_end([both.piece(t) for t in tokens[:index]])]
    assert halves
    translation = Translation(both)
    translation.state(0, tokens[: halves[0]])
    assert translation.respelling.half_character
    translation.add(tokens[halves[0] :])
    assert told(translation) == whole(draft, "x 👩")


def test_a_text_that_begins_with_half_a_character_is_whole() -> None:
    tokens = TARGET().encode("👩 x").tokens
    translation = Translation(pair(byte_level(300)))
    translation.state(0, tokens[:1])
    assert told(translation)  # the draft has something to read
    translation.add(tokens[1:])
    assert translation.respelling.text.strip() == "👩 x"


def test_bytes_that_are_no_text_do_not_end_a_session() -> None:
    draft = byte_level(300)
    broken = [TARGET()._tokenizer.token_to_id("Ã")] * 3  # the first byte of a pair, again and again
    translation = Translation(pair(draft))
    translation.state(0, broken)
    translation.add(TARGET().encode(" fine again").tokens)
    assert translation.respelling.text.endswith(" fine again")


def test_a_text_without_words_is_settled_far_from_its_end() -> None:
    respelling = Respelling(pieces_of_text())
    for _ in range(400):
        respelling.read("東".encode())
        respelling.settle()
    assert len(respelling.rest) <= 60
    assert len(respelling.tokens) > 100


def opened(tokens: Sequence[int], **fields: int) -> tuple[TwoVocabularies, Start]:
    door = TwoVocabularies(pair(byte_level(420, LLAMA3)), 4096)
    given = {"base_length": 0, "until_length": 4000, "least_length": 0, **fields}
    return door, Start(tail=tokens, price=0.0, rule=SamplingRule(), **given)


def test_positions_are_the_callers() -> None:
    tokens = TARGET().encode("What does os.path.join do?").tokens
    door, start = opened(tokens)
    telling = door.open("a", start)
    telling.begin()
    assert telling.length == len(tokens)
    telling.add(len(tokens), [300], 0.0)
    telling.add(len(tokens), [300, 301], 0.0)  # the first is known
    assert telling.length == len(tokens) + 2
    with pytest.raises(SequenceTooShortError) as short:
        telling.add(len(tokens) + 5, [1], 0.0)
    assert short.value.metadata["cached_length"] == str(len(tokens) + 2)
    with pytest.raises(SequenceTooShortError) as short:
        door.open("a", start._replace(base_length=100))
    assert short.value.metadata["cached_length"] == str(len(tokens) + 2)
    with pytest.raises(SequenceTooShortError):
        door.open("another", start._replace(base_length=1))
    door.forget("a")
    with pytest.raises(SequenceTooShortError):
        door.open("a", start._replace(base_length=1))


def test_a_hint_begins_at_the_callers_position_and_an_older_start_changes_nothing() -> None:
    target, draft = TARGET(), byte_level(420, LLAMA3)
    tokens = target.encode("What does os.path.join do? It joins").tokens
    door, start = opened(tokens, until_length=len(tokens) + 2)
    telling = door.open("a", start)
    text = telling.begin().text
    path = (*text.known[1].tokens, *draft.encode(" one or more path components").tokens)
    guess = Hint(text.length, path, (0.5,) * len(path), Source.DRAFT, 7, text.length, 0.01)
    hint = telling.hint(guess)
    assert hint is not None
    assert list(hint.tokens) == target.encode(" one or more path components").tokens[:2]  # until_length
    assert (hint.start, hint.length_seen, hint.source_id, hint.next_due) == (len(tokens), len(tokens), 7, 0.01)
    assert telling.hint(Hint(text.length + 50, path, (0.5,) * len(path), Source.DRAFT)) is None
    newer = door.open("a", start._replace(base_length=3, tail=tokens[3:]))
    newer.begin()
    assert telling.hint(guess) is None
    assert not telling.add(len(tokens), [5], 0.0)
    assert told(door._translations["a"]) == whole(draft, "What does os.path.join do? It joins")
