"""The text is the same in every mode of speculation, and with a draft that fails in a turn."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Iterator

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from tests.system.conftest import paper_tokens
from tests.system.test_lossless import embedded_prompts

PROMPT = [10, 20, 30, 40]
MODES = {
    "off": Settings(draft_length=0),
    "fixed": Settings(draft_length=4),
    "fixed and long": Settings(draft_length=12),
    "adaptive": Settings(draft_length="adaptive"),
    "adaptive, the draft alone": Settings(draft_length="adaptive", proposer="draft"),
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


@pytest.fixture(scope="module")
def spread() -> Iterator[LocalServices]:
    with LocalServices(SPREAD) as local:
        yield local


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.essential
def test_the_paper_text_is_the_same_in_every_mode(spread: LocalServices, mode: str) -> None:
    with Client(spread.orchestrator_address) as client:
        settings = Settings(
            temperature=0,
            max_token_count=200,
            draft_length=MODES[mode].draft_length,
            proposer=MODES[mode].proposer,
        )
        result = client.generate(PROMPT, settings).wait()
    assert result.token_ids == paper_tokens(PROMPT, 200)
    if mode == "off":
        assert result.draft_token_count == 0
    elif "n-grams" not in mode:
        assert result.accepted_token_count > 0


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
        settings = Settings(temperature=0, max_token_count=40, draft_length=8, proposer="ngram")
        copied = client.generate(again, settings).wait()
    assert copied.token_ids == off.token_ids
    assert copied.ngram_token_count == copied.draft_token_count
    assert copied.ngram_accepted_token_count >= len(copied.token_ids) / 2


def test_a_draft_killed_in_a_turn_changes_nothing_but_its_speed(spread: LocalServices) -> None:
    await_draft(spread)
    settings = Settings(temperature=0, max_token_count=300, draft_length="adaptive", proposer="draft")
    gaps, result = gaps_around(spread, settings, spread.services["draft"].process.kill)
    assert result.token_ids == paper_tokens(PROMPT, 300)
    assert max(gaps) < 0.4 + 15  # the deadline, and a machine's hiccups; a verifier would be waited for for 30
    spread.start_draft().wait_until_healthy()


def test_a_draft_that_hangs_in_a_turn_changes_nothing_but_its_speed(spread: LocalServices) -> None:
    await_draft(spread)
    draft = spread.services["draft"].process
    settings = Settings(temperature=0, max_token_count=600, draft_length=4)
    try:
        gaps, result = gaps_around(spread, settings, lambda: draft.send_signal(signal.SIGSTOP))
    finally:
        draft.send_signal(signal.SIGCONT)
    assert result.token_ids == paper_tokens(PROMPT, 600)
    assert result.draft_failure_count >= 1
    assert max(gaps) < 0.4 + 15
    await_draft(spread)


def gaps_around(local: LocalServices, settings: Settings, disturb: object) -> tuple[list[float], Result]:
    """Seconds between the pieces of a turn that is disturbed after the first. A busy machine makes
    few pieces of many tokens."""
    times = []
    with Client(local.orchestrator_address) as client:
        reply = client.generate(PROMPT, settings)
        for index, _ in enumerate(reply):
            times.append(time.monotonic())
            if not index:
                disturb()  # type: ignore[operator]
        return [b - a for a, b in itertools.pairwise(times)], reply.result


def await_draft(local: LocalServices) -> None:
    deadline = time.monotonic() + 120
    with Client(local.orchestrator_address) as client:
        while client.generate(PROMPT, Settings(max_token_count=20, draft_length=4)).wait().draft_count == 0:
            assert time.monotonic() < deadline, "the draft came back and is not used"
            time.sleep(0.2)


def test_adaptive_under_the_ratio_test_has_a_fixed_length(spread: LocalServices) -> None:
    with Client(spread.orchestrator_address) as client:
        adaptive = Settings(temperature=1.0, seed=1, ratio=True, draft_length="adaptive", max_token_count=40)
        result = client.generate(PROMPT, adaptive).wait()
    assert len(result.drafted_per_position) == 4 and result.ngram_token_count == 0


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
                proposer=mode.proposer,
            )
            replies.append(client.generate(prompt, settings))
        assert [reply.wait().token_ids for reply in replies] == [paper_tokens(prompt, 60) for prompt in prompts]
