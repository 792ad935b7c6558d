"""The simulated runs and guesses of the benchmarks: hints change steps, never the text."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.simulated_sequences import Guess, Handle, HintedRun
from slipstream.wire.v1 import draft_pb2, hint_pb2, model_pb2, verifier_pb2

PROMPT = [5, 6, 7]
LENGTH = 60
UNTIL = len(PROMPT) + LENGTH


def stated() -> Handle:
    handle = Handle()
    handle.state(0, PROMPT)
    return handle


def run_of(fixed_hint_count: int = 0) -> HintedRun:
    start = verifier_pb2.StartRun(
        tail=PROMPT, until_length=UNTIL, granted_length=UNTIL, fixed_hint_count=fixed_hint_count
    )
    start.longest_hold.FromMilliseconds(500)
    return HintedRun(verifier_pb2.RunItem(handle="a", round=1, start=start), stated())


def guess_of(agreement: float, step_seconds: float = 0.0) -> Guess:
    start = draft_pb2.StartDraft(tail=PROMPT, until_length=UNTIL, open=model_pb2.OpenSequence())
    return Guess(draft_pb2.DraftItem(handle="b", round=1, start=start), stated(), agreement, step_seconds)


def hint_at(start: int, tokens: Sequence[int], *, has_next: bool = False) -> hint_pb2.Hint:
    hint = hint_pb2.Hint(start=start, tokens=tokens, survivals=[0.5] * len(tokens))
    if has_next:
        hint.next_due.FromMilliseconds(1)
    return hint


def plain_text() -> list[int]:
    handle = stated()
    for _ in range(LENGTH):
        handle.choose(())
    return [handle.token(position) for position in range(len(PROMPT), UNTIL)]


def test_random_hints_do_not_change_a_runs_text() -> None:
    text, draw = plain_text(), random.Random(1)
    for _ in range(50):
        run, tokens = run_of(), list[int]()
        while not run.has_ended:
            start = draw.randrange(UNTIL)
            right = text[max(0, start - len(PROMPT)) :][:10]
            run.hint(hint_at(start, [token + (draw.random() < 0.1) for token in right]))
            result = run.step(1.0, 2.0, 1)
            assert result.position == len(PROMPT) + len(tokens)
            assert sum(step.token_count for step in result.steps) == len(result.tokens)
            tokens += result.tokens
        assert tokens == text


def test_a_hint_that_is_right_takes_its_tokens_in_one_step() -> None:
    text, run = plain_text(), run_of()
    run.step(1.0, 2.0, 1)
    run.hint(hint_at(len(PROMPT), text[:6]))  # the run has its first token already
    result = run.step(2.0, 3.0, 1)
    assert list(result.tokens) == text[1:7]
    assert (result.steps[0].hint_count, result.steps[0].accepted_count) == (5, 5)


def test_a_fixed_length_waits_for_a_hint_as_long_as_it_may() -> None:
    run = run_of(fixed_hint_count=4)
    assert run.held_until(10.0) == 10.5
    assert run.held_until(10.5) == 0.0
    run.hint(hint_at(len(PROMPT), plain_text()[:2], has_next=True))
    assert run.held_until(10.2) == 10.5
    run.hint(hint_at(len(PROMPT), plain_text()[:4]))
    assert run.held_until(10.2) == 0.0


def test_guesses_go_on_after_a_commit_that_agrees_and_begin_again_after_one_that_does_not() -> None:
    text, guess = plain_text(), guess_of(1.0)
    guess.extend(guess.wanted)
    assert list(guess.result().hints[0].tokens) == text
    guess.commit(draft_pb2.CommitTokens(position=len(PROMPT), tokens=text[:3]))
    assert guess.wanted <= 0
    assert not guess.is_due
    guess.commit(draft_pb2.CommitTokens(position=len(PROMPT) + 3, tokens=[text[3] + 1]))
    guess.extend(guess.wanted)
    hint = guess.result().hints[0]
    assert (hint.start, hint.length_seen) == (len(PROMPT) + 4, len(PROMPT) + 4)
    assert list(hint.tokens) != text[4:]


def test_the_first_guess_of_a_line_is_sent_at_once_and_later_ones_every_five_milliseconds() -> None:
    guess, sent = guess_of(0.8, 0.002), []
    for _ in range(7):
        guess.extend(1)
        sent.append(guess.is_due)
        if guess.is_due:
            guess.result()
    assert sent == [True, False, False, True, False, False, True]
