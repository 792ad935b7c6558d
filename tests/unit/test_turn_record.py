"""A turn's record: every reader gets every token once, from where it asks, however slow it is."""

from __future__ import annotations

import asyncio
import random

import pytest

from orchestrator.sessions.session import Commit, FinishReason
from orchestrator.sessions.statistics import TurnStatistics
from orchestrator.sessions.turn_record import TurnDelta, TurnEnded, TurnReader, TurnRecord, TurnStarted, read_all
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
        record.add(commit(token), [], [])
    (delta,) = deltas(slow)
    assert (list(delta.token_ids), delta.text, delta.token_offset) == ([0, 1, 2, 3, 4], "<0><1><2><3><4>", 0)


def test_a_reader_from_a_position_gets_the_rest_and_its_text() -> None:
    record = TurnRecord(1, STARTED)
    record.add(commit(1, 2, 3), [], [])
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
    record.add(commit(0, 1), scores[:3], prompt)  # a round's last tokens may have been dropped
    record.add(commit(2, 3, 4), scores[2:5], [])
    (whole,) = deltas(TurnReader(record))
    assert (list(whole.logprobs), list(whole.prompt_logprobs)) == (scores[:5], prompt)
    (rest,) = deltas(TurnReader(record, 3))
    assert (list(rest.logprobs), list(rest.prompt_logprobs)) == (scores[3:5], [])


def test_a_position_past_the_end_is_refused_and_one_past_a_running_turn_waits() -> None:
    record = TurnRecord(1, STARTED)
    ahead = TurnReader(record, 2)
    record.add(commit(1), [], [])
    assert deltas(ahead) == []
    record.add(commit(2, 3), [], [])
    assert [list(delta.token_ids) for delta in deltas(ahead)] == [[3]]
    record.end(ended(3))
    for position in (-1, 4):
        with pytest.raises(InvalidFieldsError, match="after_token_count must be from 0 to 3"):
            TurnReader(record, position)


def test_long_records_come_in_deltas_of_a_bounded_size() -> None:
    record = TurnRecord(1, STARTED)
    record.add(commit(*range(5000)), [], [])
    sizes = [len(delta.token_ids) for delta in deltas(TurnReader(record))]
    assert sum(sizes) == 5000
    assert max(sizes) <= 1024


async def test_readers_at_any_pace_get_every_token_of_every_turn_once() -> None:
    rng = random.Random(5)
    records = [TurnRecord(1, STARTED) for _ in range(3)]

    async def write(record: TurnRecord) -> None:
        for token in range(100):
            record.add(commit(token), [], [])
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
