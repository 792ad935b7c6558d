"""A legal item in which no token can be chosen fails by name, in its own turn, and ends no
service."""

from __future__ import annotations

import grpc
import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client, PeerError, Settings
from slipstream.sampling.rule import SamplingRule
from tests.system.conftest import (
    first_propose,
    first_verify,
    new_handle,
    paper_tokens,
    propose_one,
    stated,
    verify_one,
)
from tests.system.test_bad_input import reason_of

PROMPT = [10, 20, 30]
EMPTY = {
    "allowed and banned": SamplingRule(temperature=0.01, allowed_token_ids=(5,), banned_token_ids=(5,)),
    "the end alone, held back": SamplingRule(allowed_token_ids=(2,), end_token_ids=(2,), first_end_position=99),
}


@pytest.mark.parametrize("guesses", [[], [5, 5]], ids=["alone", "with guesses"])
@pytest.mark.parametrize("empty", EMPTY)
def test_an_item_whose_rule_leaves_no_token_fails_by_name_and_harms_no_other(
    paper: LocalServices, client: Client, empty: str, guesses: list[int]
) -> None:
    fields = {"round": 1, "tail": [1, 5, 5], **stated(EMPTY[empty])}
    with grpc.insecure_channel(paper.draft_address) as draft, grpc.insecure_channel(paper.verifier_address) as verifier:
        for _ in range(2):
            propose = first_propose(handle=new_handle(), draft_length=4, **fields)
            verify = first_verify(handle=new_handle(), proposal=guesses, **fields)
            assert reason_of(propose_one(draft, propose)) == "NO_TOKEN_TO_CHOOSE"
            assert reason_of(verify_one(verifier, verify)) == "NO_TOKEN_TO_CHOOSE"
    result = client.generate(PROMPT, Settings(max_token_count=30, draft_length=4)).wait()
    assert result.token_ids == paper_tokens(PROMPT, 30)
    assert all(service.process.poll() is None for service in paper.services.values())


def test_the_penalty_that_ended_the_draft_is_refused_by_name(client: Client) -> None:
    settings = Settings(temperature=0.01, seed=1, allowed_token_ids=[5], repetition_penalty=3e38, max_token_count=12)
    with pytest.raises(PeerError, match=r"repetition_penalty must be from 0\.01 to 100") as caught:
        client.generate([1, 5, 5], settings).wait()
    assert caught.value.reason == "INVALID_FIELDS"


@pytest.mark.parametrize("settings", [{"temperature": 1e-6}, {"repetition_penalty": 0.01}, {"repetition_penalty": 100}])
def test_a_setting_at_its_limit_is_served(client: Client, settings: dict[str, float]) -> None:
    reply = client.generate(PROMPT, Settings(**{"temperature": 1.0, "seed": 1, **settings}, max_token_count=8)).wait()
    assert reply.generated_token_count == 8
