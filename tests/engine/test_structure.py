import contextlib
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits
from tokenizers import AddedToken, Tokenizer

from slipstream.errors import Code
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling import matcher as matcher_module
from slipstream.sampling import structure_compiler as compiler_module
from slipstream.sampling.matcher import Matcher
from slipstream.sampling.matcher_budget import Budget
from slipstream.sampling.structure import MAX_SOURCE_BYTES, Structure, StructureKind
from slipstream.sampling.structure_compiler import CACHED_STRUCTURES, StructureCompiler
from slipstream.sampling.structure_errors import InvalidStructureError, StructureFailedError, StructureUnsupportedError
from slipstream.sampling.structure_source import grammar_of

TOKENIZER_JSON = (embedded_directory("target") / "tokenizer.json").read_bytes()
TOKENIZER = Tokenizer.from_buffer(TOKENIZER_JSON)
SIZE = 4096
OTHER_SPECIAL, END = 1, 2
COMPILER = StructureCompiler(TOKENIZER_JSON, SIZE, [END])

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "role": {"enum": ["admin", "guest", 7, None]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "home": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "flat": {"type": "boolean"}},
            "required": ["zip"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"const": "ä"}, "maxItems": 3},
    },
    "required": ["name", "role", "home"],
    "additionalProperties": False,
}
SCHEMA = Structure(StructureKind.JSON_SCHEMA, json.dumps(PERSON))
REGEX = Structure(StructureKind.REGEX, r"(?:[A-Z][a-zé]{1,6} ){1,3}\d{4}-\d\d/[^a-y\s\x00-\x1f]{0,4}")
CHOICE = Structure.of_choices(["yes", "yes, but no", "non/sens\\e.*", 'quote " and\nline', "日本語 🦊"])
GRAMMAR = Structure(
    StructureKind.GRAMMAR,
    'start: sum\nsum: item ("+" item)*\nitem: NUMBER | "(" sum ")"\nNUMBER: /[0-9]{1,2}/\n%ignore / {1,2}/\n',
)
LAZY = Structure(StructureKind.GRAMMAR, 'start: a "x"\na[suffix=";"]: /[a-f ]*/')
ALL = [SCHEMA, REGEX, CHOICE, GRAMMAR, LAZY]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def ids(tokens: str) -> list[int]:
    """Of tokens as the vocabulary spells them."""
    vocabulary = TOKENIZER.get_vocab()
    return [vocabulary[token] for token in tokens.split(" ")]


def regex(source: str) -> Structure:
    return Structure(StructureKind.REGEX, source)


def schema(content: Any) -> Structure:
    return Structure(StructureKind.JSON_SCHEMA, json.dumps(content))


def grammar(source: str) -> Structure:
    return Structure(StructureKind.GRAMMAR, source)


def generate(matcher: Matcher, seed: int, limit: int = 400) -> list[int]:
    """Random allowed tokens, single bytes as likely as long ones; ends when it may, after a
    while."""
    rng = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < limit:
        mask = matcher.allowed_mask()
        if len(tokens) > 40 and mask[END]:
            break
        tokens.append(rng.choice(np.flatnonzero(mask).tolist()))
        assert matcher.advance(tokens[-1])
        if tokens[-1] == END:
            return tokens
    return tokens


def texts(structure: Structure, count: int = 25) -> list[str]:
    """Generated texts that came to an end."""
    found = []
    for seed in range(count):
        matcher = COMPILER.matcher(structure)
        tokens = generate(matcher, seed)
        if tokens[-1] == END or matcher.allowed_mask()[END]:
            found.append(TOKENIZER.decode(tokens, skip_special_tokens=True))
    assert len(found) > count // 2
    return found


def accepts(structure: Structure, text: str) -> bool:
    """Whether the text is complete, through its own tokens and byte by byte alike."""
    matcher = COMPILER.matcher(structure)
    whole = matcher.sync(encode(text)) and bool(matcher.allowed_mask()[END])
    by_character = [token for character in text for token in encode(character)]
    assert (matcher.sync(by_character) and bool(matcher.allowed_mask()[END])) == whole
    return whole


def test_random_json_is_valid_under_its_schema() -> None:
    keys = set()
    for text in texts(SCHEMA):
        value = json.loads(text)
        keys |= set(value)
        assert {"name", "role", "home"} <= set(value) <= set(PERSON["properties"])
        assert isinstance(value["name"], str) and len(value["name"]) <= 12
        assert value["role"] in ["admin", "guest", 7, None]
        assert 0 <= value.get("age", 0) <= 150 and isinstance(value.get("age", 0), int)
        assert re.fullmatch("[0-9]{5}", value["home"]["zip"]) and set(value["home"]) <= {"zip", "flat"}
        assert value.get("tags", []) in [["ä"] * n for n in range(4)]
    assert keys == set(PERSON["properties"]), "optional properties come and go"


def test_random_text_matches_its_regex() -> None:
    for text in texts(REGEX):
        assert re.fullmatch(REGEX.source, text)


def test_every_choice_can_be_made_and_nothing_else() -> None:
    choices = json.loads(CHOICE.source)
    assert set(texts(CHOICE)) <= set(choices)
    assert all(accepts(CHOICE, choice) for choice in choices)
    assert not any(accepts(CHOICE, text) for text in ("", "ye", "yes,", "YES", "nonXsens\\e.*", "yesyes"))


def test_random_text_obeys_its_grammar() -> None:
    for text in texts(GRAMMAR):
        assert re.fullmatch(r"[0-9+() ]+", text)
        eval(re.sub(r"\b0+(?=\d)", "", text), {})


@pytest.mark.parametrize(
    ("structure", "right", "wrong"),
    [
        (
            schema({"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}}),
            "[[],[[]]]",
            "[]]",
        ),
        (schema({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "-12", "1.5"),
        (schema(True), '{"a": [1.5e3, "x"]}', "{a: 1}"),
        (schema({"type": "object"}), '{\n  "a" : {}\n}', '{"a"' + " " * 65 + ": 1}"),
        (schema({"type": "string"}), '"\\u001f é"', '"\n"'),
        (regex(r'a/"b"'), 'a/"b"', "a/b"),
        (regex("^ab$"), "ab", "a"),
        (regex("(?s).\nx"), "\n\nx", "\nx"),
        (grammar('start: "<t>" %json {"type": "boolean"} "</t>"'), "<t>true</t>", "<t>1</t>"),
        (grammar("start: A\nA: /[a-z]+/ & ~/.*q.*/"), "abc", "aqc"),
    ],
)
def test_what_a_structure_means(structure: Structure, right: str, wrong: str) -> None:
    assert accepts(structure, right)
    assert not accepts(structure, wrong)


ONE_A = {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^a$": {"minimum": 3}}}


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        ({"type": "object", **ONE_A, "additionalProperties": False}, '{"a":3}', '{"a":2}'),
        ({"type": "object", **ONE_A, "additionalProperties": False}, "{}", '{"a":3,'),
        ({"type": "object", **ONE_A, "additionalProperties": {"enum": []}}, '{"a":3}', '{"a":3,'),
        ({"anyOf": [{"type": "object", **ONE_A, "additionalProperties": False}]}, '{"a":4}', '{"a":3,'),
        (
            {
                "type": "object",
                "required": ["a"],
                "patternProperties": {"^a$": {"const": 1}},
                "additionalProperties": False,
            },
            '{"a":1}',
            '{"a":1,',
        ),
        (
            {"properties": {"a": {}, "b": {}}, "patternProperties": {"^[ab]$": {"type": "null"}}, "type": "object"},
            '{"a":null,"b":null,"c":1}',
            '{"a":1',
        ),
        (
            {"properties": {"a": {}}, "patternProperties": {"^a": {"type": "null"}}, "type": "object"},
            '{"ab":null}',
            '{"ab":1',
        ),
        ({"const": {**ONE_A}}, json.dumps(ONE_A), "{}"),
        (
            {"type": "object", "properties": {"patternProperties": {"const": 1}, "properties": {}}},
            "{}",
            '{"patternProperties":2',
        ),
    ],
)
def test_a_pattern_that_leaves_no_other_key_is_enforced_on_the_named_ones(source: Any, right: str, wrong: str) -> None:
    assert accepts(schema(source), right)
    assert not fits(schema(source), wrong)


def fits(structure: Structure, text: str) -> bool:
    """Whether a text may begin so."""
    matcher = COMPILER.matcher(structure)
    return matcher.sync([token for character in text for token in encode(character)])


def test_characters_across_token_borders() -> None:
    structure = regex("[日本é🦊]+!")
    matcher = COMPILER.matcher(structure)
    fox = encode("🦊")
    assert len(fox) > 1, "not one token, or this proves nothing"
    for token in fox:
        assert not matcher.allowed_mask()[END]
        assert not matcher.advance(encode("!")[0])
        assert matcher.advance(token)
    assert matcher.advance(encode("!")[0]) and matcher.allowed_mask()[END]
    assert accepts(structure, "é日🦊本!")
    broken = [fox[0], *encode("é")]
    assert not matcher.sync(broken) and matcher.allowed_mask()[fox[1]]


def test_complete_texts_may_end_and_may_go_on() -> None:
    matcher = COMPILER.matcher(Structure.of_choices(["yes", "yes, but no"]))
    assert not matcher.allowed_mask()[END] and not matcher.advance(END)
    assert matcher.sync(encode("yes"))
    mask = matcher.allowed_mask()
    assert mask[END] and mask[encode(",")[0]]
    assert matcher.sync(encode("yes, but no"))
    assert np.flatnonzero(matcher.allowed_mask()).tolist() == [END]
    assert matcher.advance(END) and not matcher.advance(END) and not matcher.advance(encode("y")[0])
    assert np.flatnonzero(matcher.allowed_mask()).tolist() == [END]
    assert matcher.sync(encode("yes, but")) and matcher.sync([*encode("yes"), END])
    assert not matcher.sync([*encode("yes"), END, END])


def test_several_end_tokens_and_a_padded_vocabulary() -> None:
    size = SIZE + 37  # no multiple of a word of the mask
    ends = [END, 0, SIZE + 3]  # one of them is padding to the tokenizer
    compiler = StructureCompiler(TOKENIZER_JSON.decode(), size, ends)
    plain = COMPILER.matcher(REGEX)
    matcher = compiler.matcher(REGEX)
    for token in generate(COMPILER.matcher(REGEX), 5):
        mask = matcher.allowed_mask()
        assert mask.shape == (size,) and mask.dtype == np.bool_
        assert {bool(mask[end]) for end in ends} == {bool(plain.allowed_mask()[END])}
        expected = plain.allowed_mask()
        expected[END] = mask[END]
        kept = mask[:SIZE].copy()
        kept[0] = False
        assert (kept == expected).all() and not mask[OTHER_SPECIAL]
        assert not mask[SIZE:].any() or set(np.flatnonzero(mask[SIZE:])) == {3}
        if token == END:
            assert matcher.advance(SIZE + 3) and not matcher.advance(END)
            break
        assert not matcher.advance(SIZE + 5) and not matcher.advance(size) and not matcher.advance(-1)
        assert matcher.advance(token) and plain.advance(token)
    narrow = StructureCompiler(TOKENIZER_JSON, 3000, [END])
    assert narrow.matcher(REGEX).allowed_mask().shape == (3000,)
    for bad in ([], [SIZE], [-1]):
        with pytest.raises(StructureUnsupportedError, match="names none"):
            StructureCompiler(TOKENIZER_JSON, SIZE, bad).validate(REGEX)


def test_special_tokens_are_never_allowed() -> None:
    matcher = COMPILER.matcher(regex("(?s).*"))
    assert matcher.allowed_mask()[END] and not matcher.allowed_mask()[[0, OTHER_SPECIAL]].any()
    assert not matcher.advance(OTHER_SPECIAL)
    assert matcher.sync(encode("<|im_") + encode("start|>")), "the text of one is text, if it comes as text"
    assert matcher.sync(encode("<|im_") + encode("start|") + encode(">"))
    for source in ('start: "a" <|im_start|>', 'start: "a"\n  <[1]>', 'start: "a" <[2]> "b"'):
        with pytest.raises(InvalidStructureError, match=r"must describe text alone, but has <[^>]*> in line \d"):
            COMPILER.validate(grammar(source))
    COMPILER.validate(grammar('start: "<b>" /<[0-9]>/ // <[1]>\n# <[1]>'))


def test_marks_that_answers_show_are_text() -> None:
    """Models of the Qwen family have a token for <tool_call>. Its text is shown, so it may stand
    where its text may."""
    tokenizer = Tokenizer.from_buffer(TOKENIZER_JSON)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False), AddedToken("<é>", special=False)])
    tokenizer.add_special_tokens(["<hidden>"])
    mark, other, hidden = (tokenizer.token_to_id(name) or 0 for name in ("<tool_call>", "<é>", "<hidden>"))
    assert tokenizer.decode([mark], skip_special_tokens=True) == "<tool_call>"
    compiler = StructureCompiler(tokenizer.to_str(), tokenizer.get_vocab_size(), [END])
    matcher = compiler.matcher(grammar('start: "<tool_call>" /[a-z]+/ "</tool_call>"'))
    assert matcher.allowed_mask()[[mark, *encode("<")[:1]]].all()
    assert matcher.advance(mark) and not matcher.allowed_mask()[mark]
    free = compiler.matcher(regex("(?s).*")).allowed_mask()
    assert free[mark] and not free[[other, hidden]].any()


def every_allowed(matcher: Matcher, structure: Structure, tokens: Sequence[int]) -> None:
    """The mask says what advance does, for a sample of all tokens."""
    mask = matcher.allowed_mask()
    for token in [END, *random.Random(len(tokens)).sample(range(SIZE), 60), *np.flatnonzero(mask)[:20].tolist()]:
        other = COMPILER.matcher(structure)
        assert other.sync(tokens)
        assert other.advance(token) == mask[token]


@pytest.mark.parametrize("structure", ALL, ids=lambda structure: structure.kind.value)
def test_the_mask_says_what_advance_does(structure: Structure) -> None:
    tokens: list[int] = []
    walk = generate(COMPILER.matcher(structure), 3, limit=12)
    for token in walk:
        matcher = COMPILER.matcher(structure)
        assert matcher.sync(tokens)
        if token != END:
            every_allowed(matcher, structure, tokens)
        tokens.append(token)


def test_a_mask_is_not_that_of_another_text_with_as_many_parser_rows() -> None:
    first = '{ Ġ" n am e " : " `` lement ). ow " Ċ , Ġ" ro l e " Ċ Ġ : Ċ'
    second = '{ Ġ " name " Ċ : Ċ "). exc olds br à ¤ Ń " Ċ Ġ ĉ ĉ , Ġ" ro le " Ċ'
    matcher, fresh = COMPILER.matcher(SCHEMA), COMPILER.matcher(SCHEMA)
    assert matcher.sync(ids(first))
    matcher.allowed_mask()
    for either in (matcher, fresh):
        assert either.sync(ids(second))
    assert (matcher.allowed_mask() == fresh.allowed_mask()).all()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_the_state_is_a_function_of_the_tokens(data: st.DataObject) -> None:
    structure = data.draw(st.sampled_from(ALL))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    matcher = COMPILER.matcher(structure)
    walks = [generate(COMPILER.matcher(structure), rng.randrange(1000), limit=30) for _ in range(3)]
    for _ in range(12):
        walk = rng.choice(walks)
        tokens = walk[: rng.randrange(len(walk) + 1)]
        match rng.randrange(4):
            case 0:
                assert matcher.sync(tokens)
            case 1:  # tokens that do not fit leave the longest prefix that does
                wrong = [*tokens, *rng.choices(range(SIZE), k=5)]
                fitting = COMPILER.matcher(structure)
                length = len(tokens)
                assert fitting.sync(tokens)
                while length < len(wrong) and fitting.advance(wrong[length]):
                    length += 1
                assert matcher.sync(wrong) == (length == len(wrong))
                tokens = wrong[:length]
            case 2:
                assert matcher.sync(tokens)
                matcher.masks([*walk[len(tokens) :][:6], *rng.choices(range(SIZE), k=2)])
            case 3:
                assert matcher.sync(tokens)
                allowed = np.flatnonzero(matcher.allowed_mask()).tolist()
                if END not in tokens and matcher.advance(chosen := rng.choice(allowed)):
                    tokens = [*tokens, chosen]
        fresh = COMPILER.matcher(structure)
        assert fresh.sync(tokens)
        assert (fresh.allowed_mask() == matcher.allowed_mask()).all()


@pytest.mark.parametrize("structure", ALL, ids=lambda structure: structure.kind.value)
def test_masks_of_a_speculated_run(structure: Structure) -> None:
    walk = generate(COMPILER.matcher(structure), 11, limit=14)
    matcher = COMPILER.matcher(structure)
    for start in range(len(walk)):
        assert matcher.sync(walk[:start])
        before = matcher.allowed_mask()
        draft = walk[start : start + 5]
        masks = matcher.masks(draft)
        assert len(masks) == len(draft) + 1
        for length, mask in enumerate(masks):
            fresh = COMPILER.matcher(structure)
            assert fresh.sync(walk[: start + length])
            assert mask is not None and (mask == fresh.allowed_mask()).all()
        misfit = int(np.flatnonzero(~before)[0])
        cut = matcher.masks([misfit, *draft])
        assert cut[0] is not None and cut[1:] == [None] * (len(draft) + 1)
        assert (matcher.allowed_mask() == before).all()
    assert matcher.masks([]) and len(matcher.masks([])) == 1


@pytest.mark.parametrize(
    ("structure", "reason"),
    [
        (schema({"type": "strng"}), "Invalid type: strng"),
        (schema({"properties": {"a": {"not": {"type": "null"}}}}), 'Unimplemented keys: ["not"]'),
        (schema({"type": "array", "uniqueItems": True}), 'Unimplemented keys: ["uniqueItems"]'),
        (schema({"if": {"type": "null"}, "then": {"type": "null"}}), 'Unimplemented keys: ["if", "then"]'),
        (
            schema({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}),
            "oneOf constraints are not supported",
        ),
        (schema({"type": "string", "format": "shoe-size"}), "Unknown format: shoe-size"),
        (schema({"type": "string", "pattern": "(?=a)"}), "look-around"),
        (schema({"$ref": "#/nowhere"}), "'/nowhere' does not exist"),
        (schema({"$ref": "https://example.com/schema.json"}), "https://example.com/schema.json"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable schema"),
        (schema({"x-guidance": {"lenient": True}, "not": {}}), "must not have x-guidance"),
        (schema({"$ref": "#"}), "no token can come next"),
        (schema(False), "Unsatisfiable schema: schema is false"),
        (schema([1]), "must be a JSON schema"),
        (Structure(StructureKind.JSON_SCHEMA, '{"type":'), "must be JSON: Expecting value"),
        (Structure(StructureKind.JSON_SCHEMA, '{"const": "\ud800"}'), "half a surrogate pair"),
        (schema({"const": "\ud800"}), "half a surrogate pair"),
        (schema({"pattern": "\ud800"}), "half a surrogate pair"),
        (schema({"patternProperties": {"\udc00": {}}}), "half a surrogate pair"),
        (regex("(a"), "unclosed group"),
        (regex(r"(a)\1"), "backreferences are not supported"),
        (regex("(?<!a)b"), "look-around, including look-ahead and look-behind, is not supported"),
        (regex("[a&&b]"), "no token can come next"),
        (Structure.of_choices([]), "must be a JSON array of strings"),
        (Structure(StructureKind.CHOICE, '["a", 1]'), "must be a JSON array of strings"),
        (Structure(StructureKind.CHOICE, '["\\ud800"]'), "half a surrogate pair"),
        (grammar("start: ]["), "expecting rule, token or statement"),
        (grammar("start: foo"), 'unknown name: "foo"'),
        (grammar("a: /a/"), "no start rule found"),
        (grammar('start: start "a"'), "no token can come next"),
        (grammar('start: a "x"\na[stop=";"]: /.*/'), "rollback not supported"),
        (grammar('start: "a"\n%llguidance {"allow_invalid_utf8": true}'), "must describe text alone"),
        (grammar('start: %json {"x-guidance": {"lenient": true}}'), "must not have x-guidance"),
    ],
)
def test_the_error_has_the_reason(structure: Structure, reason: str) -> None:
    for call in (COMPILER.validate, COMPILER.matcher):
        with pytest.raises(InvalidStructureError) as caught:
            call(structure)
        (violation,) = caught.value.violations
        assert (caught.value.code, caught.value.reason) == (Code.INVALID_ARGUMENT, "INVALID_STRUCTURE")
        assert violation.field == "settings.structure" and reason in violation.description
        assert not re.search("backtrace|verbose|%llguidance {", str(caught.value))


TWO_SCHEMAS = """start: "a" one | "b" two
one: %json {"type": "object", "properties": {"size": {"type": "integer"}}, "additionalProperties": false}
# no %json {"type": "shoe"} in a comment
two: "%json {" %json """


@pytest.mark.parametrize(
    ("two", "rule", "reason"),
    [
        ('{"type": "array", "minContains": 3}', "two", "Unimplemented keys"),
        ('{"type": "string", "pattern": "(?=a)"}', "two", "look-around"),
        ("[1]", "two", "must be a JSON schema"),
        ('{"x-guidance": {}}', "two", "must not have x-guidance"),
        ('{"type": ', "", 'failed to parse "%json"'),
        (f'{{"pattern": "{"a" * 5000}"}}', "", "regexes of at most 4096 bytes"),
        ("[" * 20_000, "two", "fewer levels"),
    ],
    ids=str,
)
def test_a_wrong_schema_within_a_grammar_is_told_with_its_rule(two: str, rule: str, reason: str) -> None:
    with pytest.raises(InvalidStructureError) as caught:
        COMPILER.validate(grammar(TWO_SCHEMAS + two))
    assert caught.value.rule == caught.value.metadata.get("rule", "") == rule
    assert reason in caught.value.violations[0].description


def test_a_schema_within_a_grammar_is_a_schema_like_any_other() -> None:
    both = grammar(TWO_SCHEMAS + '{"type": "boolean"}')
    assert accepts(both, 'a{"size": 3}') and accepts(both, 'a{\n  "size" : 3}') and accepts(both, "b%json {true")
    assert not accepts(both, 'a{"size":  3}'), "as much blank space as a schema alone allows"
    names = {f"a name of many letters {n}": {"type": "integer"} for n in range(400)}
    large = json.dumps({"type": "object", "properties": names})
    assert len(large) > 16 * 1024
    assert accepts(grammar(f'start: "<" %json {large} ">"'), '<{"a name of many letters 7": 1}>')
    with pytest.raises(InvalidStructureError, match="16384 bytes beside its JSON schemas"):
        COMPILER.validate(grammar(f"start: %json {large}" + "\n" * 17_000))


def chained_rules(count: int) -> str:
    return "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(count)) + f'\nr{count}: "a"\n'


def chained_references(count: int) -> Structure:
    links = {f"{n:x}": {"items": {"$ref": f"#/$defs/{n + 1:x}"}} for n in range(count)}
    return schema({"$ref": "#/$defs/0", "$defs": links | {f"{count:x}": {"type": "null"}}})


HOSTILE = {
    "nested groups": regex("(" * 2000 + "a" + ")" * 2000),
    "repetition": regex("a{1,100000}"),
    "repetitions of repetitions": regex("((a{1,1000}b?){1,1000}c?){1,1000}"),
    "exponential automaton": regex("(.*a.{20}){5}"),
    "quadratic regex": regex("a*" * 2000),
    "long regex": regex("a?" * 30_000),
    "long pattern": schema({"items": {"allOf": [{"pattern": "a?" * 20_000}]}}),
    "patterns of properties": schema({"patternProperties": {f"^{n}" + "a?" * 900: True for n in range(9)}}),
    "nested schema": Structure(StructureKind.JSON_SCHEMA, '{"items":' * 5000 + "{}" + "}" * 5000),
    "nested array": Structure(StructureKind.JSON_SCHEMA, "[" * 60_000),
    "references that overflow a stack": chained_references(1400),
    "long string": schema({"type": "string", "minLength": 1_000_000}),
    "many items": schema({"type": "array", "minItems": 100_000, "maxItems": 10_000_000}),
    "many optional properties": schema({"properties": {f"p{n}": {"type": "integer"} for n in range(2000)}}),
    "products of alternatives": schema(
        {
            "allOf": [
                {"anyOf": [{"required": [f"{i}{j}"], "properties": {f"{i}{j}": {}}} for j in "abcd"]} for i in range(12)
            ]
        }
    ),
    "rules that overflow a stack": grammar(chained_rules(1300)),
    "nested grammar": grammar("start: " + "(" * 8000 + '"a"' + ")" * 8000),
    "doubled terminals": grammar(
        "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(15)) + '\nT15: "a"?\n'
    ),
    "circular terminals": grammar("start: A\nA: B\nB: A\n"),
    "ambiguous": grammar('start: e\ne: e e | e e e | "a" |\n'),
    "too long": Structure.of_choices(["a" * MAX_SOURCE_BYTES]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_structures_end_in_time(name: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(InvalidStructureError, StructureFailedError):
        matcher = COMPILER.matcher(HOSTILE[name])
        for _ in range(30):
            if not matcher.advance(int(matcher.allowed_mask().argmax())):
                break
    assert time.monotonic() - began < 60  # a bound, not a speed: unlimited, some of these take minutes and gigabytes


LIMITED = regex("(([a-z]{1,100}b?){1,100}c?){1,100}")
"""Its first masks are within the library's limits."""


def test_a_limit_is_an_error_and_never_a_misfit_or_an_end() -> None:
    structure = LIMITED
    matcher = COMPILER.matcher(structure)
    tokens: list[int] = []

    def go_on() -> None:
        for token in [encode("a")[0]] * 300:
            assert matcher.allowed_mask()[token] and matcher.advance(token)
            tokens.append(token)

    other = COMPILER.matcher(structure)
    assert other.sync(encode("ab")) and other.allowed_mask()[END]
    with pytest.raises(StructureFailedError, match="too many expressions constructed"):
        go_on()
    assert other.allowed_mask()[END] and other.sync(encode("abc")), "one sequence's limit is no other's"
    assert COMPILER.matcher(structure).allowed_mask().any()
    assert matcher.sync(tokens[:1]) and matcher.allowed_mask()[tokens[0]], "usable where it can go on"
    assert matcher.sync([])
    masks = matcher.masks([*tokens, tokens[0]])  # a guess that leads there fails nothing
    assert masks[0] is not None and masks[-1] is None
    assert (matcher.allowed_mask() == masks[0]).all()


def until_it_fails(matcher: Matcher) -> list[int]:
    """The tokens before the one that the structure cannot go on from."""
    (token,) = encode("a")
    tokens: list[int] = []

    def go_on() -> None:
        for _ in range(300):
            fresh = COMPILER.matcher(LIMITED)
            assert fresh.sync(tokens)
            assert (matcher.allowed_mask() == fresh.allowed_mask()).all()
            assert matcher.advance(token)
            tokens.append(token)

    with pytest.raises(StructureFailedError):
        go_on()
    return tokens


def test_a_replay_that_runs_out_of_time_never_leaves_an_earlier_state(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = COMPILER.matcher(LIMITED)
    with monkeypatch.context() as patch:
        patch.setattr(matcher_module, "_MOST_REPLAY_SECONDS", -1)
        tokens = until_it_fails(matcher)
    kept = tokens[: len(tokens) // 2]
    assert matcher.sync(kept)
    fresh = COMPILER.matcher(LIMITED)
    assert fresh.sync(kept)
    assert (matcher.allowed_mask() == fresh.allowed_mask()).all()


def test_a_replay_that_runs_out_of_time_on_the_way_back_fails_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library cannot roll back once its lexer met a limit."""
    matcher = COMPILER.matcher(REGEX)
    walk = generate(COMPILER.matcher(REGEX), 3, limit=12)
    assert matcher.sync(walk[:8])

    class Stuck:
        """A state in error that never leaves it."""

        def rollback(self, count: int) -> bool:
            return False

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "a limit"

        def compute_bitmask(self) -> bytes:
            return b""

        consume_tokens = rollback

    monkeypatch.setattr(matcher_module, "_MOST_REPLAY_SECONDS", -1)
    monkeypatch.setattr(matcher, "_now", Stuck())
    alone = matcher._compiled.alone
    made: list[object] = []

    def first_stuck(budget: Budget) -> Any:
        made.append(None)
        return Stuck() if len(made) == 1 else alone(budget)

    monkeypatch.setattr(matcher._compiled, "alone", first_stuck)
    with pytest.raises(StructureFailedError, match="cannot be followed again"):
        matcher.sync(walk[:4])
    fresh = COMPILER.matcher(REGEX)
    assert matcher.sync(walk[:4]) and fresh.sync(walk[:4])
    assert (matcher.allowed_mask() == fresh.allowed_mask()).all()


class MeetsALimit:
    """Goes back, and meets a limit with its next mask; as the library's, it then says that it is
    stopped."""

    is_over = False

    def rollback(self, count: int) -> bool:
        return True

    def compute_bitmask(self) -> bytes:
        self.is_over = True
        return b""

    def is_error(self) -> bool:
        return self.is_over

    def is_stopped(self) -> bool:
        return self.is_over

    def is_accepting(self) -> bool:
        return False

    def get_error(self) -> str:
        return "a limit"


def test_a_limit_on_the_way_back_is_no_end_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher, fresh = COMPILER.matcher(REGEX), COMPILER.matcher(REGEX)
    walk = generate(COMPILER.matcher(REGEX), 3, limit=12)
    assert matcher.sync(walk[:8]) and fresh.sync(walk[:4])
    monkeypatch.setattr(matcher, "_now", MeetsALimit())
    assert matcher.sync(walk[:4])
    assert (matcher.allowed_mask() == fresh.allowed_mask()).all()


def test_a_state_in_error_is_no_end_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher, fresh = COMPILER.matcher(REGEX), COMPILER.matcher(REGEX)
    walk = generate(COMPILER.matcher(REGEX), 3, limit=12)
    assert matcher.sync(walk[:8]) and fresh.sync(walk[:8])
    over = MeetsALimit()
    over.is_over = True
    monkeypatch.setattr(matcher, "_now", over)
    assert (matcher.allowed_mask() == fresh.allowed_mask()).all()


def test_a_matcher_that_cannot_begin_again_says_so_and_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = StructureCompiler(TOKENIZER_JSON, SIZE, [END]).matcher(LIMITED)
    monkeypatch.setattr(matcher._compiled, "_seconds", 1.0)
    tokens = until_it_fails(matcher)
    assert tokens and not matcher._tokens
    for _ in range(2):  # its lexer is the one that copies share, and met its limit
        with pytest.raises(StructureFailedError, match="takes too long to be compiled again"):
            matcher.sync(tokens[:1])
    monkeypatch.undo()
    fresh = COMPILER.matcher(LIMITED)
    assert matcher.sync(tokens[:1]) and fresh.sync(tokens[:1])
    assert (matcher.allowed_mask() == fresh.allowed_mask()).all()


def test_what_a_matcher_gathers_is_not_a_limit() -> None:
    rng = random.Random(7)
    choices = ["".join(rng.choices("abcdefgh", k=60)) for _ in range(40)]
    structure = Structure.of_choices(choices)
    original = compiler_module._LIMITS
    compiler_module._LIMITS = LLParserLimits(max_lexer_states=500, verbose_errors=False)
    try:  # each choice needs some 60 states, all of them 2,400
        matcher = StructureCompiler(TOKENIZER_JSON, SIZE, [END]).matcher(structure)
        for choice in choices:
            tokens = encode(choice)
            plain = COMPILER.matcher(structure)
            for length in range(0, len(tokens) + 1, 7):
                assert matcher.sync(tokens[:length]) and plain.sync(tokens[:length])
                assert (matcher.allowed_mask() == plain.allowed_mask()).all()
    finally:
        compiler_module._LIMITS = original


def test_structures_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def counted(structure: Structure) -> str:
        compiled.append(structure.source)
        return grammar_of(structure)

    monkeypatch.setattr(compiler_module, "grammar_of", counted)
    compiler = StructureCompiler(TOKENIZER_JSON, SIZE, [END])
    structures = [Structure.of_choices([str(n)]) for n in range(CACHED_STRUCTURES + 1)]
    for structure in structures[:2] * 3:
        compiler.validate(structure)
        compiler.matcher(Structure(structure.kind, structure.source))
    assert len(compiled) == 2
    one, other = compiler.matcher(structures[0]), compiler.matcher(structures[0])
    assert one.advance(encode("0")[0]) and other.advance(encode("0")[0]), "matchers share nothing that moves"
    del one, other
    for structure in structures:
        compiler.validate(structure)
    assert len(compiled) == len(structures)
    compiler.validate(structures[0])
    assert len(compiled) == len(structures) + 1, "the oldest went"


def test_threads_share_a_compiler() -> None:
    compiler = StructureCompiler(TOKENIZER_JSON, SIZE, [END])
    expected = {structure: generate(COMPILER.matcher(structure), 1, limit=60) for structure in ALL}
    wrong: list[Structure] = []

    def work(structure: Structure) -> None:
        for _ in range(5):
            if generate(compiler.matcher(structure), 1, limit=60) != expected[structure]:
                wrong.append(structure)

    threads = [threading.Thread(target=work, args=(structure,)) for structure in ALL * 2]
    stack = threading.stack_size()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert threading.stack_size() == stack


def test_tokenizers_that_are_not_of_bytes_are_refused() -> None:
    words = json.loads(TOKENIZER_JSON) | {"decoder": None}
    with pytest.raises(StructureUnsupportedError, match="structures need a tokenizer of bytes"):
        StructureCompiler(json.dumps(words), SIZE, [END]).validate(REGEX)


def test_structures_need_no_torch() -> None:
    code = (
        "import sys, slipstream.sampling.structure_compiler\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


AMBIGUOUS = grammar('start: e\ne: e e | e e e | e e e e | "a" | "aa" | "b" |\n')
"""Its masks take longer with each token."""


def test_a_structure_that_takes_too_long_a_token_fails_alone() -> None:
    matcher, other = COMPILER.matcher(AMBIGUOUS), COMPILER.matcher(CHOICE)
    tokens: list[int] = []

    def follow() -> None:
        for token in generate(COMPILER.matcher(regex("[ab]{400}")), 1):
            matcher.allowed_mask()
            assert matcher.advance(token)
            tokens.append(token)

    with pytest.raises(StructureFailedError, match=r"takes more than 5 ms of processor time a token"):
        follow()
    assert len(tokens) > 3 and other.allowed_mask().any()
    masks = other.masks([*encode("yes")])
    assert all(mask is not None for mask in masks)


def test_one_turns_slow_states_fail_no_other_turn_of_the_same_structure() -> None:
    spent = Budget()
    slow, other = COMPILER.matcher(AMBIGUOUS, spent), COMPILER.matcher(AMBIGUOUS)
    spent.charge(10)
    with pytest.raises(StructureFailedError, match="processor time a token"):
        slow.allowed_mask()
    assert other.allowed_mask().any() and other.advance(encode("a")[0]) and other.allowed_mask().any()


class CountedBudget(Budget):
    """Counts what is charged, and what was allowed before."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def earn(self, token_count: int) -> None:
        self.calls.append("earn")
        super().earn(token_count)

    def charge(self, seconds: float) -> None:
        assert seconds > 0
        self.calls.append("charge")
        super().charge(seconds)


def test_every_mask_is_charged_and_the_way_back_needs_no_credit() -> None:
    budget = CountedBudget()
    matcher = COMPILER.matcher(REGEX, budget)
    walk = generate(COMPILER.matcher(REGEX), 3, limit=12)
    assert matcher.sync(walk[:8])
    assert budget.calls == ["earn", "charge", "charge"], "a copy's mask, then the tokens"
    budget.calls.clear()
    assert matcher.sync(walk[:4])
    assert budget.calls == ["charge"]
    budget.charge(10)
    assert matcher.sync(walk[:2]), "to go back never fails for processor time"
    with pytest.raises(StructureFailedError, match="processor time a token"):
        matcher.allowed_mask()


def test_what_took_long_to_compile_is_not_compiled_again_between_steps() -> None:
    compiled = COMPILER.compile(regex("[a-z]+"))
    assert compiled.alone(Budget()) is not None
    compiled._seconds = 1.0
    with pytest.raises(StructureFailedError, match="takes too long to be compiled again"):
        compiled.alone(Budget())


def object_of(name_count: int, pattern_count: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"n{n}": {"type": "null"} for n in range(name_count)},
        "patternProperties": {f"^x{n}-": {} for n in range(pattern_count)},
        **more,
    }


@pytest.mark.parametrize(
    "content",
    [
        {"anyOf": [object_of(60, 32) for _ in range(20)]},
        object_of(300, 10),
        {"items": object_of(40, 40, additionalProperties=object_of(30, 20))},
        {
            "type": "object",
            "properties": {f"n{n}": {} for n in range(200)},
            "patternProperties": {"^n0" + "y{0}" * 900 + "$": {}},
        },
    ],
    ids=["alternatives", "one object", "nested", "a long pattern"],
)
def test_a_schema_with_too_many_keys_and_patterns_is_refused_before_they_are_compared(content: Any) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidStructureError, match="patternProperties"):
        grammar_of(schema(content))
    assert time.thread_time() - began < 3  # a bound, not a speed: without one it is 6 s for the first


@pytest.mark.parametrize(
    "content", [object_of(2000, 1), object_of(60, 32), object_of(2001, 0), {"items": object_of(0, 99)}]
)
def test_usual_numbers_of_keys_and_patterns_are_compared(content: Any) -> None:
    grammar_of(schema(content))


def test_more_than_256_keys_are_compared_too() -> None:
    names = [f"n{n}" for n in range(300)]
    content = {
        "type": "object",
        "properties": {name: {} for name in names},
        "patternProperties": {"^n[0-9]$": {"const": 1}},
        "additionalProperties": False,
    }
    assert accepts(schema(content), '{"n3":1,"n30":2}') and not fits(schema(content), '{"n299":2,'), "no key is left"


def test_a_structure_in_use_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = StructureCompiler(TOKENIZER_JSON, SIZE, [END])
    held = compiler.validate(REGEX)
    for n in range(CACHED_STRUCTURES + 1):
        compiler.validate(Structure.of_choices([str(n)]))
    monkeypatch.setattr(compiler, "compile", lambda structure: pytest.fail("compiled"))
    assert compiler.validate(REGEX) is held


def test_of_large_structures_few_are_kept() -> None:
    compiler = StructureCompiler(TOKENIZER_JSON, SIZE, [END])
    for n in range(9):
        compiler.validate(Structure.of_choices([str(n)]), 64 * 2**20)
    assert len(compiler._latest) == 4
