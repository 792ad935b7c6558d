"""What the client's settings become on the wire, and one layer of them over another."""

from __future__ import annotations

import pytest

from slipstream.client import Settings, Structure, requests
from slipstream.client.layers import layered
from slipstream.v1 import generation_pb2 as pb
from slipstream.v1 import sampling_pb2


def test_what_is_not_said_is_not_sent() -> None:
    assert Settings().message() == pb.GenerationSettings()
    assert Settings(temperature=0.0).message().sampling.HasField("temperature")
    assert Settings(max_token_count=0).message().HasField("max_token_count")


@pytest.mark.parametrize("name", ["allowed_token_ids", "banned_token_ids", "stop_strings", "stop_token_ids", "cleared"])
@pytest.mark.parametrize("value", ["zqx", b"zqx", ""])
def test_a_text_is_no_list_of_its_letters(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a list, but is"):
        Settings(**{name: value})


def test_a_text_is_no_list_of_choices_messages_or_tokens() -> None:
    with pytest.raises(TypeError, match="choices must be a list, but is 'yes'"):
        Structure(choices="yes")
    with pytest.raises(TypeError, match="logit_bias must be a dict"):
        Settings(logit_bias=[(1, 2.0)])
    with pytest.raises(TypeError, match="messages must be a list"):
        requests.answer("hi", None, None, None)
    with pytest.raises(TypeError, match=r"messages\[1\] must be a list"):
        requests.answer([("user", "a"), "bc"], None, None, None)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="is bytes"):
        requests.generate(b"abc", None, None)
    assert Structure(choices=["yes"]).message().choices.choices == ["yes"]
    assert Settings(stop_strings=["a"], banned_token_ids=range(3)).message().sampling.banned_token_ids == [0, 1, 2]


@pytest.mark.parametrize(("draft_length", "mode"), [(0, "off"), (5, "fixed"), ("adaptive", "adaptive"), (None, None)])
def test_a_draft_length_is_a_mode_of_speculation(draft_length: object, mode: str | None) -> None:
    speculation = Settings(draft_length=draft_length, proposer="ngram").message().speculation
    assert speculation.WhichOneof("mode") == mode
    assert speculation.fixed.length == (5 if mode == "fixed" else 0)
    assert speculation.proposer == pb.Speculation.PROPOSER_NGRAM


def test_log_probabilities_acceptance_structure_and_cleared_fields_are_sent_as_they_are_meant() -> None:
    message = Settings(
        prompt_logprobs=True, ratio=True, structure=Structure(choices=[]), cleared=["stop_strings", "sampling.seed"]
    ).message()
    assert (message.logprobs.top_count, message.logprobs.prompt) == (0, True)
    assert not message.logprobs.token_bytes
    assert Settings(token_bytes=True).message().logprobs == pb.LogprobSettings(token_bytes=True)
    assert message.acceptance == sampling_pb2.ACCEPTANCE_RATIO
    assert message.structure.WhichOneof("kind") == "choices"
    assert list(message.cleared.paths) == ["stop_strings", "sampling.seed"]


def test_an_upper_layer_says_what_it_says_and_the_lower_one_the_rest() -> None:
    lower = Settings(temperature=0.5, top_k=3, stop_strings=["a", "b"], draft_length=4, logit_bias={1: 2.0})
    upper = Settings(top_k=0, stop_strings=["c"], draft_length=0, structure=Structure(choices=["x"]))
    expected = Settings(
        temperature=0.5,
        top_k=0,
        stop_strings=["c"],
        draft_length=0,
        logit_bias={1: 2.0},
        structure=Structure(choices=["x"]),
    )
    assert layered(upper.message(), lower.message()) == expected.message()
    twice = layered(upper.message(), layered(upper.message(), lower.message()))
    assert twice == expected.message()


def test_what_an_upper_layer_clears_goes_to_the_default_and_what_it_sets_is_cleared_no_more() -> None:
    lower = Settings(temperature=0.5, stop_strings=["a"], cleared=["sampling.top_p", "max_token_count"])
    upper = Settings(cleared=["stop_strings", "sampling.temperature"], max_token_count=5)
    merged = layered(upper.message(), lower.message())
    assert not merged.stop_strings
    assert not merged.sampling.HasField("temperature")
    assert merged.max_token_count == 5
    assert set(merged.cleared.paths) == {"stop_strings", "sampling.temperature", "sampling.top_p"}
