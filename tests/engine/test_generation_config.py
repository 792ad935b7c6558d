"""generation_config.json: what settings can express is followed, the rest is told in one line, and
no request pays for it."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config import (
    parse_generation_config,
    read_generation_config,
    read_gguf_generation_config,
)
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.rule import LengthDefaults, SamplingDefaults, SamplingRule, sampling_violations
from tests import tiny_models

SIZE = 300


def told(values: dict[str, Any]) -> str:
    """The one line."""
    generation = parse_generation_config(values, SIZE, 2)
    return "; ".join(generation.warnings)


def test_what_settings_can_express_is_followed() -> None:
    generation = parse_generation_config(
        {
            "suppress_tokens": [7, 8, 7],
            "bad_words_ids": [[9], [2], [8]],
            "sequence_bias": [[[11], -3.5], [[12], -math.inf]],
            "min_new_tokens": 4,
            "min_length": 20,
            "max_new_tokens": 50,
            "max_length": 90,
            "eos_token_id": [2, 3],
            "repetition_penalty": 1.5,
            "temperature": 0.7,  # but it is greedy
        },
        SIZE,
    )
    assert generation.end_token_ids == (2, 3)
    assert generation.sampling == SamplingDefaults(
        repetition_penalty=1.5, logit_bias=((11, -3.5),), banned_token_ids=(7, 8, 9, 12)
    )
    assert generation.lengths == LengthDefaults(4, 20, 50, 90)
    assert generation.warnings == ()


@pytest.mark.parametrize("ends", [2, [2, 5]])
def test_end_tokens_that_must_not_come_first_are_a_minimum_of_one_token(ends: int | list[int]) -> None:
    said = {"eos_token_id": ends, "begin_suppress_tokens": ends if isinstance(ends, list) else [ends]}
    assert parse_generation_config(said, SIZE).lengths == LengthDefaults(min_token_count=1)
    assert parse_generation_config(said, SIZE).warnings == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_repeat_ngram_size", 3),
        ("encoder_no_repeat_ngram_size", 3),
        ("encoder_repetition_penalty", 1.2),
        ("num_beams", 4),
        ("num_beam_groups", 2),
        ("penalty_alpha", 0.6),
        ("dola_layers", "high"),
        ("guidance_scale", 1.5),
        ("diversity_penalty", 0.5),
        ("exponential_decay_length_penalty", [5, 1.1]),
        ("forced_bos_token_id", 5),
        ("forced_eos_token_id", 5),
        ("token_healing", True),
        ("watermarking_config", {"bias": 2.0}),
        ("force_words_ids", [[5]]),
        ("stop_strings", ["END"]),
        ("max_time", 3.0),
        ("begin_suppress_tokens", [5]),
        ("bad_words_ids", [[5, 6]]),
        ("sequence_bias", [[[5, 6], 1.0]]),
        ("sequence_bias", [[[5], 1000.0]]),
        ("stop_words_ids", [[151643]]),  # of Qwen's first models, by code of their own
    ],
)
def test_what_is_not_followed_is_named(key: str, value: Any) -> None:
    assert told({key: value}).startswith("not followed: ") and key in told({key: value})


@pytest.mark.parametrize("key", ["epsilon_cutoff", "eta_cutoff", "top_h"])
def test_so_is_a_filter_where_there_is_sampling(key: str) -> None:
    assert told({key: 0.1}) == ""
    assert told({key: 0.1, "do_sample": True}) == f"not followed: {key}=0.1"


def test_all_is_told_at_once() -> None:
    line = told({"no_repeat_ngram_size": 3, "num_beams": 4, "eos_token_id": [2, -1], "max_length": 0})
    assert line == (
        "eos_token_id has -1, no token from 0 to 299, which is left out; max_length must be a whole number from 1 on, but is "
        "0, and is left out; not followed: no_repeat_ngram_size=3, num_beams=4"
    )


def test_what_changes_no_text_needs_no_word() -> None:
    said = GenerationConfig(
        num_beams=1, num_beam_groups=1, no_repeat_ngram_size=0, guidance_scale=1.0, bad_words_ids=None, use_cache=True
    ).to_dict()
    assert (
        told(said | {"early_stopping": False, "length_penalty": 1.0, "pad_token_id": -1, "bos_token_id": 10**9}) == ""
    )
    assert told(json.loads(GenerationConfig().to_json_string(use_diff=False))) == ""


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (-1, ()),
        (SIZE, ()),
        ([2, SIZE], (2,)),
        ([-1, 2, 2], (2,)),
        ([None, 2], (2,)),
        (2.0, (2,)),
        (2.5, ()),
        ("2", ()),
        (True, ()),
        (10**400, ()),
        ([], ()),
        ([[2]], ()),
    ],
)
def test_an_end_token_that_is_none_is_left_out(said: Any, left: tuple[int, ...]) -> None:
    generation = parse_generation_config({"eos_token_id": said}, SIZE)
    assert generation.end_token_ids == left
    assert bool(generation.warnings) == (said not in ([], 2.0, [None, 2]))
    assert any("no end token is left" in line for line in generation.warnings) == (not left and said != [])


@pytest.mark.parametrize("ends", [-1, [-1, SIZE], None])
def test_so_it_is_where_the_models_own_config_says_it(ends: Any) -> None:
    assert parse_generation_config({}, SIZE, ends).end_token_ids == ()
    assert parse_generation_config({"eos_token_id": 3}, SIZE, ends) == parse_generation_config(
        {"eos_token_id": 3}, SIZE
    )


@pytest.mark.parametrize("key", ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"])
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -1, -0.5, 0, 1e-9, 1, 1.5, 2**40, 1e300, "0.7", True, [1], {}, 10**400]
)
def test_no_value_of_a_file_is_an_error_of_a_request(key: str, value: Any) -> None:
    generation = parse_generation_config({"do_sample": True, key: value}, SIZE)
    sampling = generation.sampling
    rule = SamplingRule(
        sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        repetition_penalty=sampling.repetition_penalty,
    )
    assert sampling_violations(rule) == []
    taken = getattr(sampling, key)
    same = isinstance(value, int | float) and not isinstance(value, bool) and taken == value
    off = key in ("top_k", "top_p") and value in (0, 2**40, 1e300, 10**400) and not isinstance(value, bool)
    assert same or off or any(key in line for line in generation.warnings)


def test_a_temperature_that_is_too_small_is_the_smallest() -> None:
    assert parse_generation_config({"do_sample": True, "temperature": 1e-9}, SIZE).sampling.temperature == 1e-6
    assert "taken as 1e-06" in told({"do_sample": True, "temperature": 1e-9})


@pytest.mark.parametrize("value", [-1, 1.5, "5", True, 2**31, [5]])
@pytest.mark.parametrize("key", ["min_new_tokens", "min_length", "max_new_tokens", "max_length"])
def test_a_length_that_is_none_is_left_out(key: str, value: Any) -> None:
    assert parse_generation_config({key: value}, SIZE).lengths == LengthDefaults()
    assert told({key: value}).startswith(f"{key} must be a whole number")


@pytest.mark.parametrize(
    "values",
    [
        {"suppress_tokens": [-1, 5, SIZE]},
        {"suppress_tokens": "5"},
        {"bad_words_ids": [[SIZE], [5]]},
        {"bad_words_ids": 5},
        {"bad_words_ids": [[]]},
        {"sequence_bias": [[[SIZE], 1.0]]},
        {"sequence_bias": {"(5,)": 1.0}},
        {"sequence_bias": [5]},
        {"sequence_bias": [[[5], math.nan]]},
        {"do_sample": "yes"},
        {"suppress_tokens": list(range(9000))},
        {"begin_suppress_tokens": ["a"]},
        {"suppress_tokens": list(range(SIZE))},
    ],
)
def test_strange_lists_are_told(values: dict[str, Any]) -> None:
    generation = parse_generation_config(values, 10_000 if len(str(values)) > 9000 else SIZE, 2)
    assert len(generation.warnings) >= 1
    assert all(token == 5 for token in generation.sampling.banned_token_ids)


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(UnsupportedModelError, match="must be an object"):
        read_generation_config(tmp_path)


def test_a_gguf_files_own_settings_hold_where_nothing_lies_beside_it(tmp_path: Path) -> None:
    said = {
        "temp": "0.7",
        "top_k": "40",
        "top_p": "0.9",
        "penalty_repeat": "1.1",
        "mirostat": "2",
        "xtc_threshold": "0",
    }
    values = read_gguf_generation_config(
        tmp_path / "model.gguf", lambda key: said.get(key.removeprefix("general.sampling."))
    )
    generation = parse_generation_config(values, SIZE, [2, SIZE])
    assert generation.sampling == SamplingDefaults(0.7, top_k=40, top_p=0.9, repetition_penalty=1.1)
    assert generation.warnings == (
        "eos_token_id has 300, no token from 0 to 299, which is left out",
        'not followed: general.sampling.mirostat="2"',
    )
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_k": 3}')
    values = read_gguf_generation_config(tmp_path / "model.gguf", said.get)
    assert parse_generation_config(values, SIZE).sampling == SamplingDefaults(1.0, top_k=3)


@pytest.mark.parametrize("changes", [{"eos_token_id": -1}, {"eos_token_id": 4096, "num_beams": 4}, {"top_p": 2.0}])
def test_a_checkpoint_is_served_with_one_line(
    changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_models.save(tiny_models.build("llama"), tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, **changes}))
    model = TransformersModel.load(str(tmp_path), device="cpu", dtype="float32")
    assert model.end_token_ids == (() if "eos_token_id" in changes else (2,))
    own = [record for record in caplog.records if record.name.startswith("slipstream.engine.generation_config")]
    assert [record.levelno for record in own] == [logging.WARNING]


def test_a_config_whose_end_token_is_none_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_models.save(tiny_models.build("llama"), tmp_path)
    (tmp_path / "generation_config.json").unlink()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": -1, "pad_token_id": -1}))
    assert TransformersModel.load(str(tmp_path), device="cpu", dtype="float32").end_token_ids == ()
    assert "eos_token_id has -1" in caplog.text


@torch.inference_mode()
def test_what_is_followed_is_what_transformers_generates(tmp_path: Path) -> None:
    """Greedily, with a bias, banned tokens and end tokens that are held back."""
    tiny_models.save(tiny_models.build("llama"), tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([[7, 8, 9]])
    free = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)[0, 3:].tolist()
    values = {"suppress_tokens": free[:1], "bad_words_ids": [free[1:2]], "sequence_bias": [[free[2:3], -50.0]]}
    (tmp_path / "generation_config.json").write_text(json.dumps(values | {"eos_token_id": free[3], "min_length": 5}))
    generation = parse_generation_config(read_generation_config(tmp_path), tiny_models.VOCABULARY_SIZE)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = again.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6)[0].tolist()
    ours = ids[0].tolist()
    while len(ours) < len(theirs):
        logits = plain(input_ids=torch.tensor([ours]), use_cache=False).logits[0, -1]
        for token, bias in generation.sampling.logit_bias:
            logits[token] += bias
        held_back = generation.end_token_ids if len(ours) < generation.lengths.min_length else ()
        logits[[*generation.sampling.banned_token_ids, *held_back]] = -torch.inf
        ours.append(int(logits.argmax()))
    assert ours == theirs
    assert theirs[3:] != free
