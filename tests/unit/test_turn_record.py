"""A turn's record: every reader gets every token once, from where it asks, however slow it is."""

from __future__ import annotations

import asyncio
import random

import pytest

from orchestrator.rounds.result import Origin
from orchestrator.sessions.conversation.turn_limits import Commit, FinishReason
from orchestrator.sessions.turns import turn_record
from orchestrator.sessions.turns.readers import TurnReader, read_all
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import TurnDelta, TurnEnded, TurnRecord, TurnStarted
from slipstream.errors import InvalidFieldsError
from slipstream.sampling.outcome import TokenLogprobs

STARTED = TurnStarted("session", "request", 7, 3)


def ended(count: int, text: str = "") -> TurnEnded:
    return TurnEnded(FinishReason.MAX_TOKENS, 3, 0, count, TurnStatistics(), text)


def commit(*tokens: int) -> Commit:
    return Commit(tokens, tuple(f"<{token}>" for token in tokens), None)


def deltas(reader: TurnReader) -> list[TurnDelta]:
    found = []
    while (event := reader.next()) is not None:
        if isinstance(event, TurnDelta):
            found.append(event)
    return found


def test_what_a_slow_reader_has_not_fetched_merges_into_its_next_delta() -> None:
    record = TurnRecord(1, STARTED)
    slow = TurnReader(record)
    assert slow.next() is STARTED
    assert slow.next() is None
    for token in range(5):
        record.add(commit(token), [])
    (delta,) = deltas(slow)
    assert (list(delta.token_ids), delta.text, delta.token_offset) == ([0, 1, 2, 3, 4], "<0><1><2><3><4>", 0)


def test_a_reader_from_a_position_gets_the_rest_and_its_text() -> None:
    record = TurnRecord(1, STARTED)
    record.add(commit(1, 2, 3), [])
    record.end(ended(3, "!"))
    for position in range(4):
        reader = TurnReader(record, position)
        events = deltas(reader)
        assert [token for delta in events for token in delta.token_ids] == [1, 2, 3][position:]
        assert "".join(delta.text for delta in events) == "".join(f"<{token}>" for token in [1, 2, 3][position:])
        assert reader.done


def test_log_probabilities_stay_with_their_tokens_and_the_prompts_come_with_the_first() -> None:
    record = TurnRecord(1, STARTED)
    scores = [TokenLogprobs(token, -1.0 * token) for token in range(6)]
    prompt = [TokenLogprobs(99, -9.0)]
    record.add(commit(0, 1), [], scores[:3], prompt)  # a round's last tokens may have been dropped
    record.add(commit(2, 3, 4), [], scores[2:5])
    (whole,) = deltas(TurnReader(record))
    assert (list(whole.logprobs), list(whole.prompt_logprobs)) == (scores[:5], prompt)
    (rest,) = deltas(TurnReader(record, 3))
    assert (list(rest.logprobs), list(rest.prompt_logprobs)) == (scores[3:5], [])


def test_a_position_past_the_end_is_refused_and_one_past_a_running_turn_waits() -> None:
    record = TurnRecord(1, STARTED)
    ahead = TurnReader(record, 2)
    record.add(commit(1), [])
    assert deltas(ahead) == []
    record.add(commit(2, 3), [])
    assert [list(delta.token_ids) for delta in deltas(ahead)] == [[3]]
    record.end(ended(3))
    for position in (-1, 4):
        with pytest.raises(InvalidFieldsError, match="after_token_count must be from 0 to 3"):
            TurnReader(record, position)


def test_long_records_come_in_deltas_of_a_bounded_size() -> None:
    record = TurnRecord(1, STARTED)
    scores = [TokenLogprobs(token, -1.0) for token in range(5000)]
    record.add(commit(*range(5000)), [], scores)
    found = deltas(TurnReader(record))
    assert "".join(delta.text for delta in found) == "".join(f"<{token}>" for token in range(5000))
    assert [score for delta in found for score in delta.logprobs] == scores
    sizes = [len(delta.token_ids) for delta in found]
    assert sizes == [1024, 1024, 1024, 1024, 904]


def test_a_reader_gets_the_start_what_came_and_the_end_once_each() -> None:
    record = TurnRecord(1, STARTED)
    reader = TurnReader(record)
    record.add(commit(1, 2), [])
    assert record.token_count == 2
    end = ended(2, "!")
    assert (reader.next(), reader.next()) == (STARTED, TurnDelta("<1><2>", [1, 2], 0, [], (), [], ()))
    assert (reader.next(), reader.done) == (None, False)
    record.add(commit(3), [])
    record.end(end)
    assert (reader.next(), reader.done) == (TurnDelta("<3>", [3], 2, [], (), [], ()), False)
    assert (reader.next(), reader.done) == (end, True)
    assert reader.next() is None
    late = TurnReader(record, 3)
    assert (late.next(), late.next(), late.next()) == (STARTED, end, None)


def test_a_position_before_the_start_is_refused_while_the_turn_runs_too() -> None:
    with pytest.raises(InvalidFieldsError, match="after_token_count must be from 0 to what was received, but is -1"):
        TurnReader(TurnRecord(1, STARTED), -1)


def test_a_prompts_log_probabilities_are_the_first_that_came() -> None:
    record = TurnRecord(1, STARTED)
    first, later = [TokenLogprobs(9, -1.0)], [TokenLogprobs(9, -2.0)]
    for prompt in ([], first, later):
        record.add(commit(1), [], [TokenLogprobs(1, -3.0)], prompt)
    (delta,) = deltas(TurnReader(record))
    assert list(delta.prompt_logprobs) == first


def test_a_records_size_counts_tokens_and_every_log_probability() -> None:
    record = TurnRecord(1, STARTED)
    record.add(commit(1, 2, 3), [])
    assert record.size == 3
    scores = [TokenLogprobs(token, -1.0, ((5, -0.5), (6, -0.7))) for token in range(4)]
    record.add(commit(4, 5), [], scores[:2])
    assert record.size == 5 + 2 * 3
    of_prompt = TurnRecord(1, STARTED)
    of_prompt.add(commit(1), [], [], scores)
    assert of_prompt.size == 1 + 4 * 3


@pytest.mark.parametrize("with_a_token", [True, False])
async def test_a_turn_has_begun_at_its_first_token_or_its_end(with_a_token: bool) -> None:
    record = TurnRecord(1, STARTED)
    begun = asyncio.create_task(record.begun())
    await asyncio.sleep(0)
    record.add(commit(), [])  # a round that committed nothing
    for _ in range(3):
        await asyncio.sleep(0)
    assert not begun.done()
    record.add(commit(1), []) if with_a_token else record.end(ended(0))
    await asyncio.wait_for(begun, 60)
    await asyncio.wait_for(record.begun(), 60)
    assert not record._readers


async def test_reading_ends_when_the_last_of_several_turns_has() -> None:
    records = [TurnRecord(turn, STARTED) for turn in (1, 2)]
    events = read_all([TurnReader(record) for record in records])
    records[0].end(ended(0))
    first = [await anext(events) for _ in range(3)]
    assert first == [(0, STARTED), (0, ended(0)), (1, STARTED)]
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    records[1].end(ended(0, "!"))
    assert await asyncio.wait_for(following, 60) == (1, ended(0, "!"))
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(events), 60)


async def test_what_comes_soon_after_the_first_tokens_is_told_together_and_the_end_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_record, "_BATCH_SECONDS", 1000.0)
    record, loop = TurnRecord(1, STARTED), asyncio.get_running_loop()
    events = read_all([TurnReader(record)])
    assert await anext(events) == (0, STARTED)

    async def tokens() -> list[int]:
        _, event = await asyncio.wait_for(anext(events), 60)
        assert isinstance(event, TurnDelta)
        return list(event.token_ids)

    async def reader() -> asyncio.Future[list[int]]:
        reading = asyncio.ensure_future(tokens())
        for _ in range(5):  # until it waits
            await asyncio.sleep(0)
        return reading

    reading = await reader()
    record.add(commit(1), [])
    assert await reading == [1], "the first at once"
    reading = await reader()
    record.add(commit(2), [])
    record.add(commit(3, 4), [])
    for _ in range(5):
        await asyncio.sleep(0)
    assert not reading.done()
    timer = record._next_wake
    assert isinstance(timer, asyncio.TimerHandle) and 900 < timer.when() - loop.time() <= 1000
    record._wake()  # as the timer does
    assert await reading == [2, 3, 4]
    reading = await reader()
    record.add(commit(5), [])
    record.end(ended(5))
    assert await reading == [5], "the end at once"
    assert (await anext(events))[1] == ended(5)
    assert record._next_wake is None


def test_a_record_counts_each_of_its_tokens_and_log_probabilities_once() -> None:
    record = TurnRecord(1, STARTED)
    entry, prompt_entry = TokenLogprobs(5, -1.0, ((5, -1.0), (6, -2.0))), TokenLogprobs(5, -1.0, ((5, -1.0),))
    record.add(commit(1, 2, 3), [], [entry] * 3, [prompt_entry] * 4)
    assert record.size == 3 + 3 * (1 + 2) + 4 * (1 + 1)


async def test_readers_at_any_pace_get_every_token_of_every_turn_once() -> None:
    rng = random.Random(5)
    records = [TurnRecord(1, STARTED) for _ in range(3)]

    async def write(record: TurnRecord) -> None:
        for token in range(100):
            record.add(commit(token), [])
            await asyncio.sleep(rng.choice([0, 0, 0.001]))
        record.end(ended(100))

    async def read(pause: float) -> list[list[int]]:
        tokens: list[list[int]] = [[], [], []]
        async for index, event in read_all([TurnReader(record) for record in records]):
            if isinstance(event, TurnDelta):
                assert event.token_offset == len(tokens[index])
                tokens[index] += event.token_ids
            await asyncio.sleep(pause)
        return tokens

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read(pause)) for pause in (0, 0.001, 0.02)]
        for record in records:
            tasks.create_task(write(record))
    assert all(reader.result() == [list(range(100))] * 3 for reader in readers)


async def test_a_reader_that_leaves_is_forgotten() -> None:
    record = TurnRecord(1, STARTED)
    events = read_all([TurnReader(record)])
    assert await anext(events) == (0, STARTED)
    await events.aclose()
    assert not record._readers


def test_each_token_says_how_it_came_about_and_how_much_of_the_text_it_brought() -> None:
    record = TurnRecord(1, STARTED, tells_origins=True)
    made = Commit((1, 2, 3), ("a", "", "é!"), None)
    record.add(made, [Origin.DRAFT, Origin.NGRAM, Origin.RECOVERED, Origin.BONUS])  # the round's last was dropped
    record.add(commit(4), [Origin.PLAIN])
    (whole,), (rest,) = deltas(TurnReader(record)), deltas(TurnReader(record, 2))
    assert whole.origins == [Origin.DRAFT, Origin.NGRAM, Origin.RECOVERED, Origin.PLAIN]
    assert whole.text_byte_counts == [1, 0, 3, 3] and sum(whole.text_byte_counts) == len(whole.text.encode())
    assert rest.origins == [Origin.RECOVERED, Origin.PLAIN] and rest.text_byte_counts == [3, 3]
