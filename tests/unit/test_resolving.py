import pytest

from orchestrator.errors import PromptTooLongError
from orchestrator.sessions.resolving import ModelLimits, resolve
from orchestrator.sessions.settings import GenerationSettings
from slipstream.errors import InvalidFieldsError
from slipstream.sampling.rule import SamplingDefaults

LIMITS = ModelLimits(
    vocabulary_size=300,
    context_length=100,
    end_token_ids=(2,),
    sampling_defaults=SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95),
    default_draft_length=5,
    max_draft_length=16,
    default_max_token_count=64,
)


def test_what_is_left_open_takes_the_models_own_defaults() -> None:
    resolved = resolve(GenerationSettings(), 10, LIMITS)
    assert (resolved.terms.rule.temperature, resolved.terms.rule.top_k, resolved.terms.rule.top_p) == (0.6, 20, 0.95)
    assert resolved.terms.rule.end_token_ids == (2,)
    assert resolved.terms.speculation.draft_length == 5
    assert resolved.limits.max_token_count == 64


def test_zero_is_a_value_and_not_unset() -> None:
    resolved = resolve(GenerationSettings(temperature=0.0, top_k=0, seed=0, draft_length=0), 10, LIMITS)
    assert (resolved.terms.rule.temperature, resolved.terms.rule.top_k, resolved.terms.rule.seed) == (0.0, 0, 0)
    assert resolved.terms.speculation.draft_length == 0


def test_an_unset_seed_is_drawn_anew() -> None:
    assert (
        resolve(GenerationSettings(), 10, LIMITS).terms.rule.seed
        != resolve(GenerationSettings(), 10, LIMITS).terms.rule.seed
    )


def test_min_tokens_holds_end_tokens_back_from_the_first_generated_position() -> None:
    assert resolve(GenerationSettings(min_token_count=7), 10, LIMITS).terms.rule.first_end_position == 17


def test_a_turns_settings_win_over_the_streams() -> None:
    merged = GenerationSettings(temperature=0.0).over(GenerationSettings(temperature=1.0, top_k=3))
    assert (merged.temperature, merged.top_k) == (0.0, 3)


def test_what_a_turn_clears_takes_the_default_whatever_lies_below() -> None:
    session = GenerationSettings(temperature=1.0, stop_strings=("a",), top_k=3)
    stream = GenerationSettings(cleared=("stop_strings", "temperature"))
    turn = GenerationSettings(temperature=0.5)
    merged = turn.over(stream).over(session)
    assert (merged.temperature, merged.stop_strings, merged.top_k) == (0.5, None, 3)
    assert resolve(GenerationSettings(cleared=("temperature",)).over(session), 10, LIMITS).terms.rule.temperature == 0.6


BAD = [
    (GenerationSettings(temperature=-0.1), "settings.sampling.temperature"),
    (GenerationSettings(temperature=1e-30), "settings.sampling.temperature"),
    (GenerationSettings(min_token_count=91, max_token_count=1000), "settings.min_token_count"),
    (GenerationSettings(temperature=float("nan")), "settings.sampling.temperature"),
    (GenerationSettings(temperature=float("inf")), "settings.sampling.temperature"),
    (GenerationSettings(top_k=-1), "settings.sampling.top_k"),
    (GenerationSettings(top_p=0.0), "settings.sampling.top_p"),
    (GenerationSettings(top_p=1.1), "settings.sampling.top_p"),
    (GenerationSettings(min_p=2.0), "settings.sampling.min_p"),
    (GenerationSettings(seed=-1), "settings.sampling.seed"),
    (GenerationSettings(seed=2**63), "settings.sampling.seed"),
    (GenerationSettings(max_token_count=0), "settings.max_token_count"),
    (GenerationSettings(min_token_count=-1), "settings.min_token_count"),
    (GenerationSettings(min_token_count=65), "settings.min_token_count"),
    (GenerationSettings(stop_strings=("a", "")), "settings.stop_strings"),
    (GenerationSettings(stop_strings=("a",) * 17), "settings.stop_strings"),
    (GenerationSettings(draft_length=17), "settings.speculation.fixed.length"),
    (GenerationSettings(draft_length=-1), "settings.speculation.fixed.length"),
]


@pytest.mark.parametrize(("settings", "field"), BAD, ids=lambda value: str(value)[-40:])
def test_a_bad_field_is_named_with_what_would_be_right(settings: GenerationSettings, field: str) -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        resolve(settings, 10, LIMITS)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert "must" in caught.value.violations[0].description or "may" in caught.value.violations[0].description


def test_all_bad_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        resolve(GenerationSettings(temperature=-1, top_k=-1, max_token_count=0), 10, LIMITS)
    assert len(caught.value.violations) == 3


def test_a_prompt_that_leaves_no_room_is_refused_with_both_lengths() -> None:
    with pytest.raises(PromptTooLongError, match="has 100 tokens") as caught:
        resolve(GenerationSettings(), 100, LIMITS)
    assert caught.value.metadata == {"prompt_token_count": "100", "context_length": "100"}
    assert resolve(GenerationSettings(), 99, LIMITS)
