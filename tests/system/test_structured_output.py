"""Structured output through the whole system: always valid, and the same with speculation as
without."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client, PeerError, Settings, Structure

KINDS = ["function", "class", "module", "constant"]
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"kind": {"enum": KINDS}, "arguments": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["kind", "arguments"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z_]{1,6}$"},
            "returns": {"type": "array", "items": {"enum": ["str", "int", "None"]}, "minItems": 1, "maxItems": 2},
            "pure": {"type": "boolean"},
        },
        "required": ["name", "returns"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 500}, "minItems": 2, "maxItems": 3},
]
SYMBOLS = ["os.path.join", "json.dumps", "abs", "itertools.chain", "re.match", "math.floor", "shutil.copy"]


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """What these schemas say, checked by hand: the library that enforces them is not asked."""
    if schema is SCHEMAS[0]:
        return set(value) == {"kind", "arguments"} and value["kind"] in KINDS and value["arguments"] in range(100)
    if schema is SCHEMAS[1]:
        returns = value["returns"]
        return (
            {"name", "returns"} <= set(value) <= {"name", "returns", "pure"}
            and re.fullmatch("[a-z_]{1,6}", value["name"]) is not None
            and 1 <= len(returns) <= 2
            and set(returns) <= {"str", "int", "None"}
            and isinstance(value.get("pure", True), bool)
        )
    return 2 <= len(value) <= 3 and all(isinstance(item, int) and -5 <= item <= 500 for item in value)


def test_200_json_schema_generations_are_valid_and_do_not_depend_on_speculation(embedded: LocalServices) -> None:
    """200 in bfloat16, as served by default; fewer in float32."""
    with Client(embedded.orchestrator_address) as client:
        count = 200 if client.server_info().target.dtype == "bfloat16" else 40
    rng = random.Random(4)
    jobs = [
        (
            f"Describe {rng.choice(SYMBOLS)} as JSON.",
            SCHEMAS[index % len(SCHEMAS)],
            Settings(temperature=rng.choice([0.0, 0.8, 1.2]), seed=index, max_token_count=150),
        )
        for index in range(count)
    ]

    def run(client: Client, draft_length: int) -> list[tuple[list[int], str, str, float]]:
        def answer(job: tuple[str, dict[str, Any], Settings]) -> tuple[list[int], str, str, float]:
            question, schema, settings = job
            structure = Structure(json_schema=json.dumps(schema))
            asked = replace(settings, structure=structure, draft_length=draft_length)
            result = client.answer([("user", question)], asked).wait()
            return result.token_ids, result.text, result.finish_reason, result.acceptance_rate

        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(answer, jobs))

    with Client(embedded.orchestrator_address) as client:
        speculative, plain = run(client, 5), run(client, 0)
    for (_, schema, _), (_, text, reason, _) in zip(jobs, speculative, strict=True):
        assert reason == "END_TOKEN", text
        assert fits(json.loads(text), schema), text
    assert [result[:3] for result in speculative] == [result[:3] for result in plain]
    # The draft follows the structure too: without its mask it would hardly ever propose a brace.
    assert sum(result[3] for result in speculative) / len(speculative) > 0.25


@pytest.mark.parametrize(
    ("structure", "pattern"),
    [
        (Structure(regex="[A-Z]{2}-[0-9]{3}"), "[A-Z]{2}-[0-9]{3}"),
        (Structure(choices=["yes", "no", "maybe ünsure"]), "yes|no|maybe ünsure"),
        (
            Structure(grammar='start: sum\nsum: NUMBER ("+" NUMBER)+\nNUMBER: /[0-9]{1,3}/'),
            r"[0-9]{1,3}(\+[0-9]{1,3})+",
        ),
    ],
)
@pytest.mark.parametrize("ratio", [False, True])
@pytest.mark.essential
def test_other_structures(embedded: LocalServices, structure: Structure, pattern: str, ratio: bool) -> None:
    settings = Settings(temperature=1.0, structure=structure, ratio=ratio, draft_length=4, max_token_count=200)
    with Client(embedded.orchestrator_address) as client:
        for seed in range(10):
            result = client.answer([("user", "And?")], replace(settings, seed=seed)).wait()
            if result.finish_reason == "END_TOKEN":  # a sum may go on for long
                assert re.fullmatch(pattern, result.text), result.text
            else:
                assert result.finish_reason == "MAX_TOKENS" and "+" in pattern
            if not ratio:
                plain = client.answer([("user", "And?")], replace(settings, seed=seed, draft_length=0)).wait()
                assert plain.token_ids == result.token_ids


def test_turns_of_a_chat_may_each_have_a_structure_of_their_own(embedded: LocalServices) -> None:
    with Client(embedded.orchestrator_address) as client, client.chat(settings=Settings(temperature=0)) as chat:
        assert chat.send("Really?", Settings(structure=Structure(choices=["yes", "no"]))).wait().text in ("yes", "no")
        assert (
            chat.send("And?", Settings(structure=Structure(regex="[0-9]+;"), max_token_count=90))
            .wait()
            .text[0]
            .isdigit()
        )
        for nothing in (Structure(), Structure(choices=[]), Structure(regex="(")):
            with pytest.raises(PeerError) as caught:
                chat.send("And?", Settings(structure=nothing)).wait()
            assert caught.value.code.name == "INVALID_ARGUMENT"  # in band: the chat goes on
        free = chat.send("What does os.path.join do?").wait()
        assert free.finish_reason == "END_TOKEN" and free.text.startswith("Join")


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        (Structure(json_schema="{"), "must be JSON"),
        (Structure(json_schema='{"type": "banana"}'), "banana"),
        (Structure(json_schema='{"not": {"type": "string"}}'), "not"),
        (Structure(regex="("), "unclosed group"),
        (Structure(grammar="start: missing"), "missing"),
        (Structure(choices=[]), "at least one"),
        (Structure(json_schema='{"pattern": "\\ud800"}'), "half a surrogate pair"),
        (
            Structure(json_schema='{"allOf": [{"type": "integer", "multipleOf": 4999}, {"multipleOf": 4993}]}'),
            "(--structure-",
        ),
    ],
)
def test_an_invalid_structure_is_refused_with_the_librarys_reason(
    embedded: LocalServices, structure: Structure, words: str
) -> None:
    with Client(embedded.orchestrator_address) as client, pytest.raises(PeerError) as caught:
        client.answer([("user", "And?")], Settings(structure=structure)).wait()
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert caught.value.reason == "INVALID_STRUCTURE"
    assert words in str(caught.value) and "settings.structure" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (Settings(ignore_end_tokens=True), "settings.ignore_end_tokens"),
        (Settings(min_token_count=3), "settings.min_token_count"),
        (Settings(banned_token_ids=[5]), "settings.sampling.banned_token_ids"),
        (Settings(allowed_token_ids=[5]), "settings.sampling.allowed_token_ids"),
    ],
)
def test_what_a_structure_decides_itself_cannot_be_asked_beside_it(
    embedded: LocalServices, settings: Settings, field: str
) -> None:
    with Client(embedded.orchestrator_address) as client, pytest.raises(PeerError) as caught:
        client.answer([("user", "And?")], replace(settings, structure=Structure(choices=["a"]))).wait()
    assert f"{field} must not be set together with structure" in str(caught.value)
