"""Guesses over a real socket: what a stream may say, what it hears, and what its end changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from slipstream.agreed import PEER_KEY
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.engine import Engine
from slipstream.engine.host import HostLimits
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.rpc.sampling_wire import rule_hash, rule_message
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, hint_pb2
from tests.contract.test_handles import OURS, RATIO, Services
from tests.engine.test_runs import said

GREEDY = SamplingRule()
PROMPT = [5, 6]


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services(HostLimits(sweep_seconds=0.02))
    await services.start()
    yield services
    await services.stop()


class Stream:
    """A stream of guesses of one peer."""

    def __init__(self, services: Services) -> None:
        stub = draft_pb2_grpc.DraftServiceStub(services.channel)
        self.call = stub.Draft(metadata=((PEER_KEY, OURS),))
        self.results: list[draft_pb2.DraftResult] = []

    async def say(self, number: int, handle: str = "a" * 32, **action: Any) -> None:
        item = draft_pb2.DraftItem(handle=handle, round=number, **action)
        await self.call.write(draft_pb2.DraftRequest(items=[item]))

    async def start(self, number: int, *, rule: SamplingRule = GREEDY, size: int = 259, **fields: Any) -> None:
        given = {"tail": PROMPT, "until_length": 4000, "open": {}, **fields}
        await self.say(number, start=draft_pb2.StartDraft(rule=rule_message(rule, size), **given))

    async def commit(self, number: int, position: int, tokens: Sequence[int], price: float = 0.0) -> None:
        await self.say(number, commit={"position": position, "tokens": tokens, "price": price})

    async def hear(self, is_it: Callable[[draft_pb2.DraftResult], bool]) -> draft_pb2.DraftResult:
        while True:
            for index, result in enumerate(self.results):
                if is_it(result):
                    later = self.results[index + 1 :]  # of other rounds the earlier ones stay: they may come first
                    self.results = [each for each in self.results[:index] if each.round != result.round] + later
                    return result
            response = await asyncio.wait_for(self.call.read(), 10)
            assert isinstance(response, draft_pb2.DraftResponse)
            self.results += response.results

    async def last(self, number: int) -> draft_pb2.DraftResult:
        """The last result of a round."""
        return await self.hear(lambda result: result.round == number and (result.final or result.HasField("error")))

    async def hint(self, start: int, count: int) -> hint_pb2.Hint:
        """A hint of the base line with that beginning and at least so many tokens."""

        def found(result: draft_pb2.DraftResult) -> list[hint_pb2.Hint]:
            bases = [hint for hint in result.hints if hint.source == hint_pb2.HINT_SOURCE_DRAFT]
            return [hint for hint in bases if hint.start == start and len(hint.tokens) >= count]

        return found(await self.hear(lambda result: bool(found(result))))[0]


async def test_hints_follow_the_commits(services: Services) -> None:
    stream = Stream(services)
    await stream.start(1)
    hint = await stream.hint(2, 64)
    assert list(hint.tokens) == said(PROMPT, 66)
    assert (hint.length_seen, hint.source, len(hint.survivals)) == (2, hint_pb2.HINT_SOURCE_DRAFT, 64)
    assert hint.source_id and not hint.HasField("next_due")
    await stream.commit(1, 2, said(PROMPT, 5))
    hint = await stream.hint(5, 64)
    text = [*PROMPT, *said(PROMPT, 8), 9]
    await stream.commit(1, 4, text[4:])  # the first of them are known
    hint = await stream.hint(9, 2)
    assert list(hint.tokens) == said(text, 9 + len(hint.tokens))
    await stream.say(1, stop={})
    result = await stream.last(1)
    assert result.final and not result.HasField("error")


async def test_every_result_has_its_times(services: Services) -> None:
    stream = Stream(services)
    await stream.start(1)
    result = await stream.hear(lambda result: len(result.hints) > 0)
    assert result.timing.forward_count >= 1
    assert result.timing.total.ToNanoseconds() >= result.timing.forward.ToNanoseconds() > 0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"until_length": 2}, b"until_length"),
        ({"until_length": -5}, b"until_length"),
        ({"least_length": 65}, b"least_length"),
        ({"least_length": -1}, b"least_length"),
        ({"price": -1.0}, b"price"),
        ({"price": math.nan}, b"price"),
        ({"price": math.inf}, b"price"),
        ({"rule": RATIO}, b"rule.acceptance"),
        ({"tail": [5, 259]}, b"tail"),
        ({"tail": [-1]}, b"tail"),
        ({"tail": []}, b"tail"),
        ({"base_length": -1}, b"base_length"),
        ({"base_length": 3}, b"SEQUENCE_TOO_SHORT"),
        ({"open": None}, b"UNKNOWN_HANDLE"),
    ],
)
async def test_a_start_that_makes_no_sense_is_refused(services: Services, fields: dict[str, Any], name: bytes) -> None:
    stream = Stream(services)
    await stream.start(1, **fields)
    assert name in (await stream.last(1)).error.SerializeToString()
    await stream.start(2)
    await stream.hint(2, 64)


@pytest.mark.parametrize(
    ("commit", "name"),
    [
        ({"position": 3, "tokens": [1]}, b"SEQUENCE_TOO_SHORT"),
        ({"position": 2**31 - 1, "tokens": [1]}, b"SEQUENCE_TOO_SHORT"),
        ({"position": -1, "tokens": [1]}, b"position"),
        ({"position": 2, "tokens": []}, b"tokens"),
        ({"position": 2, "tokens": [259]}, b"tokens"),
        ({"position": 2, "tokens": [-1]}, b"tokens"),
        ({"position": 2, "tokens": [1], "price": math.nan}, b"price"),
        ({"position": 2, "tokens": [1], "price": -1.0}, b"price"),
        ({"position": 2, "tokens": [1] * 8192}, b"CONTEXT_EXCEEDED"),
    ],
)
async def test_a_commit_that_makes_no_sense_ends_the_guesses(
    services: Services, commit: dict[str, Any], name: bytes
) -> None:
    stream = Stream(services)
    await stream.start(1)
    await stream.hint(2, 64)
    await stream.say(1, commit=commit)
    assert name in (await stream.last(1)).error.SerializeToString()
    await stream.start(2)
    await stream.hint(2, 64)
    assert all(result.round == 2 for result in stream.results)  # the error was the last of the first


async def test_an_item_without_an_action_is_refused(services: Services) -> None:
    stream = Stream(services)
    await stream.say(1)
    assert b"action" in (await stream.last(1)).error.SerializeToString()


async def test_items_of_another_round_change_nothing(services: Services) -> None:
    stream = Stream(services)
    await stream.start(3)
    await stream.hint(2, 64)
    for number, handle in ((2, "a" * 32), (4, "a" * 32), (3, "u" * 32)):
        await stream.say(number, handle, commit={"position": 2, "tokens": [9]})
        await stream.say(number, handle, stop={})
    await stream.start(2)
    assert b"STALE_ROUND" in (await stream.last(2)).error.SerializeToString()
    await stream.start(3)  # again: nothing
    await stream.commit(3, 2, said(PROMPT, 3))
    hint = await stream.hint(3, 64)
    assert list(hint.tokens) == said(PROMPT, 67)[1:]


async def test_a_start_that_another_stream_has_sent_is_refused(services: Services) -> None:
    first, second = Stream(services), Stream(services)
    await first.start(1)
    await first.hint(2, 64)
    await second.start(1)
    assert b"STALE_ROUND" in (await second.last(1)).error.SerializeToString()
    second.call.cancel()
    await first.commit(1, 2, said(PROMPT, 3))
    await first.hint(3, 64)


@pytest.mark.parametrize("rests", [False, True])
async def test_a_newer_start_ends_the_older_guesses(services: Services, rests: bool) -> None:
    stream = Stream(services)
    await stream.start(1)
    await stream.hint(2, 64 if rests else 1)
    await stream.start(2, base_length=1, tail=[7])
    result = await stream.last(1)
    assert result.final and not result.HasField("error")
    hint = await stream.hint(2, 64)
    assert list(hint.tokens) == said([5, 7], 66)


async def test_a_proposal_ends_the_guesses(services: Services) -> None:
    stream = Stream(services)
    await stream.start(1)
    await stream.hint(2, 64)
    rule = rule_message(GREEDY, 259)
    stub = draft_pb2_grpc.DraftServiceStub(services.channel)
    call = stub.Propose(metadata=((PEER_KEY, OURS),))
    item = draft_pb2.ProposeItem(
        handle="a" * 32, round=2, base_length=2, tail=said(PROMPT, 3), draft_length=3, rule=rule, rule_hash=1
    )
    assert rule_hash(rule)
    await call.write(draft_pb2.ProposeRequest(items=[item]))
    response = await call.read()
    assert isinstance(response, draft_pb2.ProposeResponse)
    assert list(response.results[0].tokens) == said(PROMPT, 6)[1:]
    assert (await stream.last(1)).final
    call.cancel()


async def test_a_closed_handle_ends_its_guesses_without_a_result(services: Services) -> None:
    stream = Stream(services)
    await stream.start(1)
    await stream.hint(2, 64)
    await stream.say(1, close={})
    result = await stream.last(1)
    assert result.final and not result.hints and not result.HasField("error")
    await stream.start(2)
    assert b"UNKNOWN_HANDLE" in (await stream.last(2)).error.SerializeToString()


async def test_a_lost_stream_ends_its_guesses(services: Services) -> None:
    stream = Stream(services)
    await stream.start(1)
    await stream.hint(2, 64)
    stream.call.cancel()
    for _ in range(1000):
        if all(asked.answered for asked in services.draft._rounds.values()):
            break
        await asyncio.sleep(0.01)
    steps = services.draft.load.step_count
    later = Stream(services)
    await later.commit(1, 2, [9])
    await later.start(2, until_length=12)
    await later.hint(2, 10)
    assert services.draft.load.step_count <= steps + 10


async def test_guesses_end_as_the_service_drains(services: Services) -> None:
    stream = Stream(services)
    await stream.start(1)
    await stream.hint(2, 64)
    services.draining.set()
    assert (await stream.last(1)).final


def load_embedded() -> Engine:
    folder = str(embedded_directory("draft"))
    backend = load_compiled_checkpoint(folder, dtype="float32", page_size=16, single_rows=True, threads=1)
    engine = Engine(backend, kv_memory_mib=16)
    engine.profile(0.01)
    return engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_embedded_draft_guesses_on(temperature: float) -> None:
    """However the commits fall, a hint is what the draft chooses after the committed tokens."""
    rule = SamplingRule(temperature=temperature, seed=5)
    services = Services(HostLimits())
    await services.start(load_draft=load_embedded)
    try:
        stream = Stream(services)
        prompt = list(range(100, 140))
        await stream.start(1, tail=prompt, rule=rule, size=4096, least_length=12)
        whole = list((await stream.hint(40, 12)).tokens)
        text = [*prompt, *whole[:3]]
        await stream.commit(1, 40, whole[:3])
        hint = await stream.hint(43, 12)
        assert list(hint.tokens[:9]) == whole[3:12]
        assert sorted(hint.survivals, reverse=True) == list(hint.survivals)
        text = [*text, 77]
        await stream.commit(1, 43, [77])
        after = list((await stream.hint(44, 12)).tokens)
        await stream.start(2, tail=text, rule=rule, size=4096, least_length=12)
        assert list((await stream.hint(44, 12)).tokens)[:12] == after[:12]
    finally:
        await services.stop()
