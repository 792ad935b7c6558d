"""The draft works while the target verifies: what it prepares, what it holds, and that no mode can
be told from the text."""

from __future__ import annotations

import dataclasses
import itertools
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Result, Settings
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, model_pb2
from tests.system.conftest import (
    first_propose,
    load_of,
    new_handle,
    paper_tokens,
    propose_one,
    settled_load_of,
    stated,
)
from tests.system.test_lossless import embedded_prompts

PROMPT = [10, 20, 30, 40]
MODES = {
    "off": Settings(draft_length=0),
    "synchronous": Settings(draft_length=4),
    "enumerated": Settings(draft_length=4, overlap="enumerate"),
    "run ahead": Settings(draft_length=12, overlap="run_ahead"),
    "adaptive": Settings(draft_length="adaptive"),
    "adaptive, enumerated": Settings(draft_length="adaptive", overlap="enumerate", proposer="draft"),
    "adaptive, run ahead": Settings(draft_length="adaptive", overlap="run_ahead", proposer="draft"),
    "n-grams": Settings(draft_length="adaptive", proposer="ngram"),
    "fixed n-grams": Settings(draft_length=6, proposer="ngram"),
}
SPREAD = PairSettings(
    target="arithmetic:ends=0&forward_ms=8",
    draft="arithmetic:ends=0&agreement=0.8&spread=0.6&forward_ms=1",
    target_flags=["--drain-seconds", "0"],
    draft_flags=["--drain-seconds", "0", "--kv-memory-mib", "0.0625"],
    orchestrator_flags=["--draft-deadline-seconds", "0.4"],
)
ENUMERATED = ("enumerated", "adaptive, enumerated")
ROOMY = dataclasses.replace(
    SPREAD,
    target="arithmetic:ends=0&forward_ms=40",
    draft="arithmetic:ends=0&agreement=0.8&spread=0.6&forward_ms=1",
    orchestrator_flags=["--draft-deadline-seconds", "5"],
)
"""A verification that the draft's branches fit beside on any machine."""


@pytest.fixture(scope="module")
def spread() -> Iterator[LocalServices]:
    with LocalServices(SPREAD) as local:
        yield local


@pytest.fixture(scope="module")
def roomy() -> Iterator[LocalServices]:
    with LocalServices(ROOMY) as local:
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


_LONG = 500
"""Tokens of a text so long that some rounds meet what no branch was there for, however many
branches a plan asks for."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.essential
def test_the_paper_text_is_the_same_in_every_mode(spread: LocalServices, roomy: LocalServices, mode: str) -> None:
    with Client((roomy if mode in ENUMERATED else spread).orchestrator_address) as client:
        settings = Settings(
            temperature=0,
            max_token_count=_LONG,
            draft_length=MODES[mode].draft_length,
            overlap=MODES[mode].overlap,
            proposer=MODES[mode].proposer,
        )
        result = client.generate(PROMPT, settings).wait()
    assert result.token_ids == paper_tokens(PROMPT, _LONG)
    if mode in ENUMERATED:
        assert result.hit_count > result.miss_count > 0
        assert result.overlap_counts["enumerate"] > 10
        assert result.draft_hidden_time > result.draft_time
    if mode == "off":
        assert result.draft_token_count == 0 and sum(result.overlap_counts.values()) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_embedded_text_is_the_same_in_every_mode(embedded: LocalServices, temperature: float) -> None:
    prompts = embedded_prompts(6, seed=21)
    texts = {}
    with Client(embedded.orchestrator_address) as client:
        for name, mode in MODES.items():
            settings = Settings(
                temperature=temperature,
                seed=5,
                max_token_count=40,
                top_logprob_count=2,
                draft_length=mode.draft_length,
                overlap=mode.overlap,
                proposer=mode.proposer,
            )
            replies = [client.generate(prompt, settings) for prompt in prompts]  # all at once
            results = [reply.wait() for reply in replies]
            texts[name] = [(result.token_ids, result.logprobs) for result in results]
    assert all(text == texts["off"] for text in texts.values())


def test_ngrams_propose_where_a_text_repeats_itself(embedded: LocalServices) -> None:
    prompt = embedded_prompts(1, seed=5)[0]
    with Client(embedded.orchestrator_address) as client:
        first = client.generate(prompt, Settings(temperature=0, max_token_count=40, draft_length=0)).wait()
        # The answer is in the prompt of the second question: what the target says it can copy.
        again = [*prompt, *first.token_ids, *prompt]
        off = client.generate(again, Settings(temperature=0, max_token_count=40, draft_length=0)).wait()
        copied = client.generate(again, Settings(temperature=0, max_token_count=40, proposer="ngram")).wait()
    assert copied.token_ids == off.token_ids
    assert copied.ngram_token_count == copied.draft_token_count > 0
    assert copied.ngram_accepted_token_count > 0 and copied.round_count < off.round_count


def test_a_draft_killed_while_it_prepares_costs_a_deadline_at_most(spread: LocalServices) -> None:
    await_draft(spread)
    settings = Settings(temperature=0, max_token_count=300, draft_length="adaptive", proposer="draft")
    gaps, result = gaps_around(spread, settings, spread.services["draft"].process.kill)
    assert result.token_ids == paper_tokens(PROMPT, 300)
    assert max(gaps) < 0.4 + 15  # the deadline, and a machine's hiccups; a verifier would be waited for for 30
    spread.start_draft().wait_until_healthy()


def test_a_draft_that_hangs_while_it_prepares_costs_its_deadline(spread: LocalServices) -> None:
    await_draft(spread)
    draft = spread.services["draft"].process
    settings = Settings(temperature=0, max_token_count=300, draft_length=4, overlap="enumerate")
    try:
        gaps, result = gaps_around(spread, settings, lambda: draft.send_signal(signal.SIGSTOP))
    finally:
        draft.send_signal(signal.SIGCONT)
    assert result.token_ids == paper_tokens(PROMPT, 300)
    assert result.draft_failure_count >= 1
    assert max(gaps) < 0.4 + 15
    await_draft(spread)


def gaps_around(local: LocalServices, settings: Settings, disturb: object) -> tuple[list[float], Result]:
    """Seconds between the pieces of a turn that is disturbed after a few of them."""
    times = []
    with Client(local.orchestrator_address) as client:
        reply = client.generate(PROMPT, settings)
        for index, _ in enumerate(reply):
            times.append(time.monotonic())
            if index == 5:
                disturb()  # type: ignore[operator]
        return [b - a for a, b in itertools.pairwise(times)], reply.result


def await_draft(local: LocalServices) -> None:
    deadline = time.monotonic() + 120
    with Client(local.orchestrator_address) as client:
        while client.generate(PROMPT, Settings(max_token_count=20, draft_length=4)).wait().draft_count == 0:
            assert time.monotonic() < deadline, "the draft came back and is not used"
            time.sleep(0.2)


def test_an_overlap_under_the_ratio_test_is_refused_and_says_why(spread: LocalServices) -> None:
    with Client(spread.orchestrator_address) as client:
        settings = Settings(temperature=1.0, ratio=True, draft_length=4, overlap="enumerate")
        with pytest.raises(PeerError, match=r"settings\.speculation\.overlap.*OVERLAP_NONE"):
            client.generate(PROMPT, settings).wait()
        adaptive = Settings(temperature=1.0, seed=1, ratio=True, draft_length="adaptive", max_token_count=40)
        result = client.generate(PROMPT, adaptive).wait()
    assert result.overlap_counts["enumerate"] == result.overlap_counts["run_ahead"] == 0


def test_sessions_in_different_modes_do_not_mix_up(spread: LocalServices) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 200) for _ in range(rng.randint(1, 60))] for _ in range(24)]
    modes = list(MODES.values())
    with Client(spread.orchestrator_address) as client:
        replies = []
        for index, prompt in enumerate(prompts):
            mode = modes[index % len(modes)]
            settings = Settings(
                temperature=0,
                max_token_count=60,
                draft_length=mode.draft_length,
                overlap=mode.overlap,
                proposer=mode.proposer,
            )
            replies.append(client.generate(prompt, settings))
        assert [reply.wait().token_ids for reply in replies] == [paper_tokens(prompt, 60) for prompt in prompts]
