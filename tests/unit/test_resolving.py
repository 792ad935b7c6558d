import secrets
from dataclasses import replace

import pytest

from orchestrator.errors import PromptTooLongError
from orchestrator.rounds.terms import LEAD_BEFORE_STOP_STRINGS, RoundTerms
from orchestrator.sessions.conversation.resolving import ModelLimits, ResolvedTurn, resolve_settings
from orchestrator.sessions.conversation.settings import ADAPTIVE, GenerationSettings
from orchestrator.sessions.conversation.turn_limits import TurnLimits
from orchestrator.speculation.proposal import Source
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.errors import InvalidFieldsError
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import Acceptance, LengthDefaults, SamplingDefaults, SamplingRule
from slipstream.sampling.structure import Structure, StructureKind

WORD = Structure(StructureKind.REGEX, "[a-z]+")
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
    resolved = resolve_settings(GenerationSettings(), 10, LIMITS)
    assert (resolved.terms.rule.temperature, resolved.terms.rule.top_k, resolved.terms.rule.top_p) == (0.6, 20, 0.95)
    assert resolved.terms.rule.end_token_ids == (2,)
    assert resolved.terms.speculation.draft_length == 5
    assert resolved.limits.max_token_count == 64


def test_zero_is_a_value_and_not_unset() -> None:
    resolved = resolve_settings(GenerationSettings(temperature=0.0, top_k=0, seed=0, draft_length=0), 10, LIMITS)
    assert (resolved.terms.rule.temperature, resolved.terms.rule.top_k, resolved.terms.rule.seed) == (0.0, 0, 0)
    assert resolved.terms.speculation.draft_length == 0


def test_an_unset_seed_is_drawn_again() -> None:
    assert (
        resolve_settings(GenerationSettings(), 10, LIMITS).terms.rule.seed
        != resolve_settings(GenerationSettings(), 10, LIMITS).terms.rule.seed
    )


def test_min_tokens_holds_end_tokens_back_from_the_first_generated_position() -> None:
    assert resolve_settings(GenerationSettings(min_token_count=7), 10, LIMITS).terms.rule.first_end_position == 17


def test_a_turns_settings_win_over_the_streams() -> None:
    merged = GenerationSettings(temperature=0.0).over(GenerationSettings(temperature=1.0, top_k=3))
    assert (merged.temperature, merged.top_k) == (0.0, 3)


def test_a_field_that_a_turn_clears_takes_the_default_over_every_layer() -> None:
    session = GenerationSettings(temperature=1.0, stop_strings=("a",), top_k=3)
    stream = GenerationSettings(cleared=("stop_strings", "temperature"))
    turn = GenerationSettings(temperature=0.5)
    merged = turn.over(stream).over(session)
    assert (merged.temperature, merged.stop_strings, merged.top_k) == (0.5, None, 3)
    assert (
        resolve_settings(GenerationSettings(cleared=("temperature",)).over(session), 10, LIMITS).terms.rule.temperature
        == 0.6
    )


def test_a_stored_setting_may_clear_a_field_that_is_no_more() -> None:
    stored = GenerationSettings(cleared=("draft_length", "overlap", "proposer"))
    assert stored.over(GenerationSettings(draft_length=4)).draft_length is None


def test_every_setting_reaches_what_the_turn_is_run_under() -> None:
    """No two fields have one value, so that none can stand in for another."""
    structure = Structure(StructureKind.REGEX, "a+")
    settings = GenerationSettings(
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.25,
        typical_p=0.625,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.125,
        logit_bias=((3, 1.5), (4, -2.0)),
        seed=9,
        max_token_count=21,
        stop_strings=("x", "yz"),
        stop_token_ids=(8, 11),
        include_stop_in_text=True,
        logprobs=LogprobRequest(2, prompt=True),
        structure=structure,
        acceptance=Acceptance.RATIO,
        proposal_top_k=5,
        draft_length=3,
        proposer=Source.DRAFT,
    )
    rule = SamplingRule(
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.25,
        seed=9,
        end_token_ids=(2, 8, 11),
        first_end_position=10,
        typical_p=0.625,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.125,
        logit_bias=((3, 1.5), (4, -2.0)),
        first_generated_position=10,
        structure=structure,
        acceptance=Acceptance.RATIO,
        proposal_top_k=5,
    )
    speculation = SpeculationSettings(3, Source.DRAFT)
    resolved = resolve_settings(settings, 10, LIMITS)
    assert resolved == ResolvedTurn(
        RoundTerms(rule, speculation, LogprobRequest(2, prompt=True), LEAD_BEFORE_STOP_STRINGS),
        TurnLimits(21, 100, ("x", "yz"), (8, 11), include_stop=True),
    )
    assert resolved.wants_prompt_logprobs
    listed = replace(settings, structure=None, allowed_token_ids=(5, 6, 5, 12), banned_token_ids=(6, 7, 6))
    rule = resolve_settings(replace(listed, ignore_end_tokens=True, min_token_count=4), 10, LIMITS).terms.rule
    assert (rule.allowed_token_ids, rule.banned_token_ids) == ((5, 6, 12), (6, 7))
    assert (rule.end_token_ids, rule.first_end_position) == ((8, 11), 14), "a stop token ends the turn all the same"


@pytest.mark.parametrize("source", [Source.NGRAM, Source.HEADS])
def test_the_ratio_test_takes_proposals_of_the_draft_alone(source: Source) -> None:
    settings = GenerationSettings(acceptance=Acceptance.RATIO, proposer=source)
    with pytest.raises(InvalidFieldsError, match=r"speculation\.proposer must be the draft") as refused:
        resolve_settings(settings, 10, LIMITS)
    assert [each.field for each in refused.value.violations] == ["settings.speculation.proposer"]
    with pytest.raises(InvalidFieldsError):  # a session keeps the acceptance of its first turn
        resolve_settings(GenerationSettings(proposer=source), 10, LIMITS, acceptance=Acceptance.RATIO)
    assert resolve_settings(replace(settings, draft_length=0), 10, LIMITS).terms.speculation.is_off


def test_every_default_is_the_models_own() -> None:
    defaults = SamplingDefaults(0.5, top_k=7, top_p=0.75, min_p=0.25, typical_p=0.625, repetition_penalty=1.5)
    resolved = resolve_settings(GenerationSettings(seed=1), 10, replace(LIMITS, sampling_defaults=defaults))
    assert resolved.terms.rule == SamplingRule(
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.25,
        seed=1,
        end_token_ids=(2,),
        first_end_position=10,
        typical_p=0.625,
        repetition_penalty=1.5,
        first_generated_position=10,
    )
    assert resolved.limits == TurnLimits(64, 100)
    assert resolved.terms.logprobs is None and not resolved.wants_prompt_logprobs
    assert not resolve_settings(GenerationSettings(logprobs=LogprobRequest(2)), 10, LIMITS).wants_prompt_logprobs


def test_where_neither_client_nor_model_says_anything_every_filter_is_off() -> None:
    rule = resolve_settings(
        GenerationSettings(seed=0), 10, replace(LIMITS, sampling_defaults=SamplingDefaults())
    ).terms.rule
    off = SamplingRule(0.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, repetition_penalty=1.0)
    assert rule == replace(off, end_token_ids=(2,), first_end_position=10, first_generated_position=10)
    assert off == SamplingRule()


def test_acceptance_is_the_turns_or_else_the_sessions() -> None:
    def resolved(said: Acceptance | None, session: Acceptance | None) -> Acceptance:
        return resolve_settings(
            GenerationSettings(acceptance=said), 10, LIMITS, acceptance=session
        ).terms.rule.acceptance

    assert resolved(None, None) is Acceptance.COUPLED
    assert resolved(None, Acceptance.RATIO) is Acceptance.RATIO
    assert resolved(Acceptance.COUPLED, Acceptance.RATIO) is Acceptance.COUPLED


def test_an_adaptive_draft_length_ignores_the_models_default() -> None:
    assert (
        resolve_settings(GenerationSettings(draft_length=ADAPTIVE), 10, LIMITS).terms.speculation.draft_length is None
    )
    open_by_default = replace(LIMITS, default_draft_length=None)
    assert resolve_settings(GenerationSettings(), 10, open_by_default).terms.speculation.draft_length is None


AT_THEIR_LIMITS = [
    GenerationSettings(max_token_count=1),
    GenerationSettings(max_token_count=1000, min_token_count=90),
    GenerationSettings(min_token_count=64),
    GenerationSettings(stop_strings=("a",) * 16, stop_token_ids=(5,) * 64),
    GenerationSettings(logprobs=LogprobRequest(20)),
    GenerationSettings(logprobs=LogprobRequest(0, prompt=True)),
    GenerationSettings(draft_length=16),
    GenerationSettings(allowed_token_ids=tuple(range(300)), banned_token_ids=tuple(range(299))),
    GenerationSettings(banned_token_ids=tuple(range(299)), stop_token_ids=(299,)),
    GenerationSettings(allowed_token_ids=(2,)),
    GenerationSettings(allowed_token_ids=(2, 3), min_token_count=1),
    GenerationSettings(acceptance=Acceptance.RATIO),
    GenerationSettings(top_p=1.0, min_p=1.0, typical_p=1.0, seed=2**63 - 1, proposal_top_k=1024),
    GenerationSettings(presence_penalty=-2.0, frequency_penalty=2.0, logit_bias=((0, -100.0), (299, 100.0))),
    GenerationSettings(presence_penalty=2.0, frequency_penalty=-2.0, proposal_top_k=1, min_p=0.0),
]


@pytest.mark.parametrize("settings", AT_THEIR_LIMITS, ids=lambda value: str(value)[-40:])
def test_a_field_may_be_at_its_limit(settings: GenerationSettings) -> None:
    assert resolve_settings(settings, 10, LIMITS)


def test_a_drawn_seed_is_one_that_a_double_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients in JavaScript read it as a number, and send it again."""
    monkeypatch.setattr(secrets, "randbelow", lambda bound: bound - 1)
    seed = resolve_settings(GenerationSettings(), 10, LIMITS).terms.rule.seed
    assert seed == 2**53 - 1 == int(float(seed))
    assert resolve_settings(GenerationSettings(seed=2**63 - 1), 10, LIMITS).terms.rule.seed == 2**63 - 1


def test_log_probabilities_of_a_prompt_are_bounded_by_their_number() -> None:
    wide = replace(LIMITS, context_length=1_000_000, default_max_token_count=1)
    most = GenerationSettings(logprobs=LogprobRequest(1, prompt=True))
    assert resolve_settings(most, 100_000, wide)
    with pytest.raises(InvalidFieldsError, match=r"logprobs\.prompt may ask for at most 200000"):
        resolve_settings(most, 100_001, wide)
    assert resolve_settings(GenerationSettings(logprobs=LogprobRequest(1)), 100_001, wide)
    spelt = GenerationSettings(logprobs=LogprobRequest(1, prompt=True, token_bytes=True))
    assert resolve_settings(spelt, 50_000, wide).tells_token_bytes
    with pytest.raises(InvalidFieldsError, match=r"logprobs\.prompt may ask for at most 100000"):
        resolve_settings(spelt, 50_001, wide)


def test_lists_of_tokens_are_bounded() -> None:
    wide = replace(LIMITS, vocabulary_size=10_000)
    assert resolve_settings(GenerationSettings(banned_token_ids=tuple(range(8192))), 10, wide)
    with pytest.raises(InvalidFieldsError, match="may name at most 8192 tokens, but names 8193"):
        resolve_settings(GenerationSettings(banned_token_ids=tuple(range(8193))), 10, wide)


def test_an_empty_prompt_is_refused_and_one_token_is_enough() -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        resolve_settings(GenerationSettings(), 0, LIMITS)
    assert [violation.field for violation in caught.value.violations] == ["prompt"]
    assert resolve_settings(GenerationSettings(), 1, LIMITS).terms.rule.first_generated_position == 1


def test_settings_below_are_cleared_by_those_above_and_said_again_above_them() -> None:
    session = GenerationSettings(temperature=1.0, top_k=3, cleared=("top_p",))
    stream = GenerationSettings(top_p=0.5, cleared=("top_k",))
    merged = stream.over(session)
    assert (merged.temperature, merged.top_k, merged.top_p, merged.cleared) == (1.0, None, 0.5, ("top_k",))
    again = GenerationSettings(top_k=0).over(merged)
    assert (again.top_k, again.cleared) == (0, ())
    assert GenerationSettings().over(session).cleared == ("top_p",)


BAD = [
    (GenerationSettings(logprobs=LogprobRequest(21)), "settings.logprobs.top_count"),
    (GenerationSettings(logprobs=LogprobRequest(-1)), "settings.logprobs.top_count"),
    (GenerationSettings(stop_token_ids=(5,) * 65), "settings.stop_token_ids"),
    (GenerationSettings(stop_token_ids=(300,)), "settings.stop_token_ids"),
    (GenerationSettings(logit_bias=((-1, 1.0),)), "settings.sampling.logit_bias"),
    (GenerationSettings(logit_bias=((3, 100.5),)), "settings.sampling.logit_bias[3]"),
    (GenerationSettings(logit_bias=((3, -100.5),)), "settings.sampling.logit_bias[3]"),
    (GenerationSettings(allowed_token_ids=(300,)), "settings.sampling.allowed_token_ids"),
    (GenerationSettings(banned_token_ids=(-1,)), "settings.sampling.banned_token_ids"),
    (GenerationSettings(banned_token_ids=tuple(range(300))), "settings.sampling.banned_token_ids"),
    (GenerationSettings(allowed_token_ids=(5,), banned_token_ids=(5,)), "settings.sampling.allowed_token_ids"),
    (GenerationSettings(allowed_token_ids=(2,), min_token_count=1), "settings.sampling.allowed_token_ids"),
    (
        GenerationSettings(banned_token_ids=tuple(range(299)), stop_token_ids=(299,), min_token_count=1),
        "settings.sampling.banned_token_ids",
    ),
    (GenerationSettings(proposal_top_k=0), "settings.proposal_top_k"),
    (GenerationSettings(proposal_top_k=1025), "settings.proposal_top_k"),
    (GenerationSettings(typical_p=0.0), "settings.sampling.typical_p"),
    (GenerationSettings(typical_p=1.01), "settings.sampling.typical_p"),
    (GenerationSettings(min_p=-0.01), "settings.sampling.min_p"),
    (GenerationSettings(repetition_penalty=0.0), "settings.sampling.repetition_penalty"),
    (GenerationSettings(repetition_penalty=101.0), "settings.sampling.repetition_penalty"),
    (GenerationSettings(presence_penalty=2.1), "settings.sampling.presence_penalty"),
    (GenerationSettings(presence_penalty=-2.1), "settings.sampling.presence_penalty"),
    (GenerationSettings(frequency_penalty=2.1), "settings.sampling.frequency_penalty"),
    (GenerationSettings(frequency_penalty=-2.1), "settings.sampling.frequency_penalty"),
    (GenerationSettings(temperature=100.5), "settings.sampling.temperature"),
    (GenerationSettings(structure=WORD, ignore_end_tokens=True), "settings.ignore_end_tokens"),
    (GenerationSettings(structure=WORD, min_token_count=1), "settings.min_token_count"),
    (GenerationSettings(structure=WORD, allowed_token_ids=(5,)), "settings.sampling.allowed_token_ids"),
    (GenerationSettings(structure=WORD, banned_token_ids=(5,)), "settings.sampling.banned_token_ids"),
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
    (GenerationSettings(max_token_count=-1), "settings.max_token_count"),
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
        resolve_settings(settings, 10, LIMITS)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert "must" in caught.value.violations[0].description or "may" in caught.value.violations[0].description


def test_all_bad_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        resolve_settings(GenerationSettings(temperature=-1, top_k=-1, max_token_count=0), 10, LIMITS)
    assert len(caught.value.violations) == 3
    with pytest.raises(InvalidFieldsError) as caught:
        resolve_settings(GenerationSettings(stop_strings=("",), structure=WORD, ignore_end_tokens=True), 10, LIMITS)
    assert [v.field for v in caught.value.violations] == ["settings.stop_strings", "settings.ignore_end_tokens"]


def test_a_prompt_that_leaves_no_room_is_refused_with_both_lengths() -> None:
    with pytest.raises(PromptTooLongError, match="has 100 tokens") as caught:
        resolve_settings(GenerationSettings(), 100, LIMITS)
    assert caught.value.metadata == {"prompt_token_count": "100", "context_length": "100"}
    assert resolve_settings(GenerationSettings(), 99, LIMITS)


OWN = replace(
    LIMITS,
    sampling_defaults=SamplingDefaults(logit_bias=((5, -2.0),), banned_token_ids=(7, 8)),
    length_defaults=LengthDefaults(min_token_count=4),
)


def test_tokens_that_the_model_bans_or_biases_hold_until_a_request_says_others() -> None:
    rule = resolve_settings(GenerationSettings(), 10, OWN).terms.rule
    assert (rule.banned_token_ids, rule.logit_bias) == ((7, 8), ((5, -2.0),))
    said = GenerationSettings(banned_token_ids=(9,), logit_bias=((6, 1.0),))
    rule = resolve_settings(said, 10, OWN).terms.rule
    assert (rule.banned_token_ids, rule.logit_bias) == ((9,), ((6, 1.0),))
    rule = resolve_settings(GenerationSettings(banned_token_ids=(), logit_bias=()), 10, OWN).terms.rule
    assert (rule.banned_token_ids, rule.logit_bias) == ((), ())


@pytest.mark.parametrize(
    "settings",
    [
        GenerationSettings(allowed_token_ids=(7, 8)),
        GenerationSettings(allowed_token_ids=(2,)),
        GenerationSettings(structure=WORD),
        GenerationSettings(max_token_count=1),
        GenerationSettings(ignore_end_tokens=True),
        GenerationSettings(banned_token_ids=tuple(range(3, 300))),
    ],
)
def test_nothing_that_the_model_says_makes_a_request_wrong(settings: GenerationSettings) -> None:
    banned = replace(OWN, sampling_defaults=SamplingDefaults(banned_token_ids=(7, 8)))
    resolved = resolve_settings(settings, 10, banned)
    assert resolved.terms.rule.first_end_position <= 10 + resolved.limits.max_token_count
    resolve_settings(settings, 99, replace(banned, length_defaults=LengthDefaults(50, 200, 1, 20)))


@pytest.mark.parametrize(
    ("own", "prompt_length", "said", "first_end", "most"),
    [
        (LengthDefaults(), 10, GenerationSettings(), 10, 64),
        (LengthDefaults(min_token_count=4), 10, GenerationSettings(), 14, 64),
        (LengthDefaults(min_length=30), 10, GenerationSettings(), 30, 64),
        (LengthDefaults(min_length=30), 50, GenerationSettings(), 50, 64),
        (LengthDefaults(min_length=30), 10, GenerationSettings(min_token_count=0), 10, 64),
        (LengthDefaults(min_token_count=4), 10, GenerationSettings(max_token_count=3), 13, 3),
        (LengthDefaults(max_token_count=7), 10, GenerationSettings(), 10, 7),
        (LengthDefaults(max_token_count=7), 10, GenerationSettings(max_token_count=80), 10, 80),
        (LengthDefaults(max_length=30), 10, GenerationSettings(), 10, 20),
        (LengthDefaults(max_length=30), 30, GenerationSettings(), 30, 64),
        (LengthDefaults(max_token_count=7, max_length=30), 10, GenerationSettings(), 10, 7),
        (LengthDefaults(min_token_count=90, max_length=30), 10, GenerationSettings(), 30, 20),
    ],
)
def test_a_models_own_lengths_hold_where_a_request_says_none(
    own: LengthDefaults, prompt_length: int, said: GenerationSettings, first_end: int, most: int
) -> None:
    resolved = resolve_settings(said, prompt_length, replace(LIMITS, length_defaults=own))
    assert (resolved.terms.rule.first_end_position, resolved.limits.max_token_count) == (first_end, most)
