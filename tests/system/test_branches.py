"""Branches of a draft service: what it would say after each answer of a verification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, model_pb2
from tests.system.conftest import first_propose, load_of, new_handle, propose_one, settled_load_of, stated
from tests.system.test_lossless import embedded_prompts

SPREAD = PairSettings(
    target="arithmetic:ends=0",
    draft="arithmetic:ends=0&agreement=0.8&spread=0.6&forward_ms=1",
    draft_flags=["--kv-memory-mib", "0.0625"],
)


@pytest.fixture(scope="module")
def spread() -> Iterator[LocalServices]:
    with LocalServices(SPREAD) as local:
        yield local


class Draft:
    """One handle on a draft service."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = draft_pb2_grpc.DraftServiceStub(self.channel)
        self.handle = new_handle()
        self.round = 0

    def propose(self, tokens: Sequence[int], **fields: object) -> list[draft_pb2.Branch]:
        self.round += 1
        item = first_propose(handle=self.handle, round=self.round, tail=tokens, **fields)
        branches: list[draft_pb2.Branch] = []
        for response in self.stub.Propose(iter([draft_pb2.ProposeRequest(items=[item])])):
            for result in response.results:
                assert not result.HasField("error"), result.error
                branches.extend(result.branches)
                if result.final:
                    return branches
        raise AssertionError("the stream ended before the last result")

    def close(self) -> None:
        propose_one(self.channel, draft_pb2.ProposeItem(handle=self.handle, close=model_pb2.CloseSequence()))
        self.channel.close()


@contextmanager
def opened(address: str) -> Iterator[Draft]:
    draft = Draft(address)
    try:
        yield draft
    finally:
        draft.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_branch_says_what_the_draft_would_say_once_it_came_true(embedded: LocalServices, temperature: float) -> None:
    rule = stated(SamplingRule(temperature=temperature, seed=4))
    prompts = embedded_prompts(4, seed=8)
    outcomes = set()
    with opened(embedded.draft_address) as draft:
        for index, prompt in enumerate(prompts):
            in_flight = list(draft.propose(prompt, draft_length=5, **rule)[0].tokens)
            if index % 2:  # what is in flight is not all the draft's own
                in_flight[1] += 1
            branches = draft.propose(prompt, in_flight=in_flight, draft_length=5, max_branch_count=6, **rule)
            assert 0 < len(branches) <= 6
            for branch in branches:
                outcomes.add((branch.accepted_count, branch.next_token))
                committed = [*prompt, *in_flight[: branch.accepted_count], branch.next_token]
                plain = draft.propose(committed, draft_length=5, **rule)[0]
                assert list(branch.tokens) == list(plain.tokens)
                assert len(branch.margins) == len(branch.logprobs) == len(branch.tokens)
                assert list(branch.logprobs) == pytest.approx(list(plain.logprobs), abs=1e-3)
    assert len(outcomes) > 8 and len({count for count, _ in outcomes}) > 2


def test_forks_leave_no_page_behind_however_they_end(spread: LocalServices) -> None:
    before = settled_load_of(spread.draft_address).held_page_count
    draft = Draft(spread.draft_address)
    prompt = list(range(3, 103))
    for length in (1, 3, 8):
        assert draft.propose(prompt, in_flight=[9] * length, draft_length=8, max_branch_count=16)
    # The last one is overtaken in the middle of its work, and its handle closed.
    items = [
        first_propose(handle=draft.handle, round=100 + n, tail=prompt, in_flight=[9, 9], draft_length=30)
        for n in range(3)
    ]
    answers = draft.stub.Propose(iter([draft_pb2.ProposeRequest(items=[item]) for item in items]))
    assert sum(len(response.results) for response in answers) == 3
    draft.close()
    after = settled_load_of(spread.draft_address)
    assert after.held_page_count == before
    assert after.page_count == after.free_page_count + after.held_page_count + after.cached_page_count


def test_more_branches_than_there_are_pages_for_are_fewer_branches(spread: LocalServices) -> None:
    page_count, size = load_of(spread.draft_address).page_count, load_of(spread.draft_address).page_size
    with opened(spread.draft_address) as draft:
        prompt = [5] * ((page_count - 2) * size)
        branches = draft.propose(prompt, in_flight=[7] * 3, draft_length=16, max_branch_count=16)
        assert 1 <= len(branches) < 16
    assert settled_load_of(spread.draft_address).held_page_count <= page_count // 2
