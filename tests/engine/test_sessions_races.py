"""What meets in one moment: requests that come twice, a drain, a session that changes hands. A real
store, scripted peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context

from orchestrator.errors import (
    RequestIdReusedError,
    SessionBusyError,
    SessionMovedError,
    ShuttingDownError,
)
from orchestrator.rounds.drafts import Drafts
from orchestrator.sessions.admission.demand import AdmissionWait
from orchestrator.sessions.admission.principal import ANONYMOUS
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import from_user
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.conversation.turn_limits import FinishReason
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.entrance.chat import ChatStream
from orchestrator.sessions.entrance.chat_commands import (
    ChatClosing,
    ChatEvent,
    Command,
    SendMessage,
    SessionOpened,
    StartChat,
    TurnHappened,
)
from orchestrator.sessions.entrance.requests import Fork, Generation, NewSession, UserMessage
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord
from orchestrator.store.opening import open_store
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import OwnerRow
from orchestrator.watching.watching import Watching
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.sampling.rule import Acceptance
from slipstream.structures.trials import StructureTrials
from tests.scripted_peers import MODEL, Draft, Verifier, rounds_over

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
CODEC = Codec.from_files(FILES)
SERVED = replace(MODEL, vocabulary_size=CODEC.tokenizer.get_vocab_size())
SAID, NO_TRACE = GenerationSettings(draft_length=0, max_token_count=3), Context()
LEASE = 600.0
"""Seconds: who is taken for dead here is said to be."""


class Process:
    """An orchestrator's sessions, one of several over a store, and the verifier that answers
    them."""

    def __init__(self, name: str, place: Path, stack: AsyncExitStack, most: int = 100) -> None:
        self.store = open_store(str(place))
        stack.callback(self.store.close)
        self.me = OwnerRow(name * 16, f"at {name}", name)
        self.verifier = Verifier()
        self.verifier.may_answer.set()
        self.loaded = LoadedSessions(max_count=most, ttl_seconds=60)
        self.watching = Watching()
        self.sessions = Sessions(
            self.loaded, self.store, Ownership(self.store, self.me, LEASE), lambda: "", self.watching, max_count=most
        )
        structures = StructureTrials(FILES["tokenizer.json"], MODEL.vocabulary_size, MODEL.end_token_ids)
        rounds = rounds_over(Draft(), self.verifier)
        self.sessions.serve(Pair(SERVED, Drafts(), CODEC, rounds, structures, 0, 8))

    async def take_for_dead(self, other: Process) -> None:
        """Another process seems to have ended."""
        assert await self.store.remove_owner(other.me.id)

    async def send(self, record: SessionRecord, name: str = "m", content: str = "hello") -> TurnRecord:
        message = UserMessage(from_user(content), SAID, RequestName(name, content.encode()) if name else RequestName())
        return await self.sessions.send(record, message, GenerationSettings(), NO_TRACE, AdmissionWait())

    async def taken_over(self, session_id: str) -> SessionRecord:
        """Take over a session that no process owns."""
        assert await self.sessions.takeover.locate(session_id, "") is None
        return self.sessions.get_loaded(session_id, ANONYMOUS)

    def holding(self, operation: str) -> tuple[asyncio.Event, asyncio.Event]:
        """From now on an operation of the store says when it is asked for, and waits to be let
        go."""
        asked, may_go = asyncio.Event(), asyncio.Event()
        work: Callable[..., Awaitable[Any]] = getattr(self.store, operation)

        async def held(*arguments: Any, **options: Any) -> Any:
            asked.set()
            await may_go.wait()
            return await work(*arguments, **options)

        setattr(self.store, operation, held)
        return asked, may_go


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
def start(stack: AsyncExitStack, tmp_path: Path) -> Callable[[str], Awaitable[Process]]:
    async def begin(name: str) -> Process:
        process = Process(name, tmp_path / "sessions.db", stack)
        await stack.enter_async_context(process.sessions)
        return process

    return begin


Start = Callable[[str], Awaitable[Process]]


# --- what is in memory, and what is not


async def test_a_session_that_memory_was_spared_of_has_moved_and_is_found_again(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    process = Process("a", tmp_path / "sessions.db", stack, most=2)
    await stack.enter_async_context(process.sessions)
    record = await process.sessions.create(NewSession())
    await ended(await process.send(record))
    for _ in range(2):
        await process.sessions.create(NewSession())
    assert process.loaded.find(record.session.id) is None
    with pytest.raises(SessionMovedError):
        await process.send(record, "again")
    await ended(await process.send(await process.taken_over(record.session.id), "again"))


async def test_an_abandoned_generation_holds_no_admission_permit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await start("a")
    generation = Generation((5, 6, 7), SAID, choice_count=4)
    process.verifier.may_answer.clear()
    asked, may_go = asyncio.Event(), asyncio.Event()
    persistence = process.sessions._persistence
    work = persistence.create_generation

    async def held(*arguments: Any) -> Any:
        asked.set()
        await may_go.wait()
        return await work(*arguments)

    monkeypatch.setattr(persistence, "create_generation", held)
    begun = asyncio.create_task(process.sessions.generate(generation, NO_TRACE, AdmissionWait()))
    await asked.wait()
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    may_go.set()
    await until(lambda: not process.loaded.all() and not process.sessions.tasks.turns)
    process.verifier.may_answer.set()


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


async def ended(turn: TurnRecord) -> None:
    await until(lambda: turn.ended is not None)


async def test_a_turns_begin_and_end_are_written_with_when_the_session_was_active(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())

    async def written() -> int:
        found = await process.store.find_session(record.session.id)
        assert found is not None
        return found[0].last_active

    process.verifier.may_answer.clear()
    await process.send(record)
    await process.verifier.asked.wait()
    begun = await written()
    assert begun == round(record.stored.last_active * 1e6)
    process.verifier.may_answer.set()
    await until(lambda: not process.sessions.tasks.turns)
    assert await written() == round(record.stored.last_active * 1e6) > begun


async def test_a_generation_without_a_name_draws_ratios_and_is_written_nowhere(start: Start) -> None:
    process = await start("a")
    said = replace(SAID, acceptance=Acceptance.RATIO, temperature=1.0)
    (turn,) = await process.sessions.generate(Generation((5, 6, 7), said), NO_TRACE, AdmissionWait())
    await ended(turn)
    assert turn.ended is not None and turn.ended.error is None and turn.tokens == [7, 7, 7]
    assert await process.store.list_turns(turn.started.session_id) == []


async def test_where_no_turn_runs_no_progress_is_noted_and_nothing_has_moved(start: Start) -> None:
    process = await start("a")
    records = [await process.sessions.create(NewSession()) for _ in range(2)]
    await ended(await process.send(records[0]))
    turn = records[0].turns.get(1)
    assert await process.sessions._persistence.write_progress([(records[0].stored, turn)]) == set()
    assert await process.sessions._persistence.write_progress([]) == set()


# --- a request that comes again while its first is being written down


async def test_a_message_sent_again_while_its_first_is_written_down_is_one_turn(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())
    asked, may_go = process.holding("begin_turn")
    first = asyncio.create_task(process.send(record))
    await asked.wait()
    again = [asyncio.create_task(process.send(record)) for _ in range(3)]
    await asyncio.sleep(0.05)
    may_go.set()
    turns = await asyncio.gather(first, *again)
    assert all(turn is turns[0] for turn in turns) and record.session.turn_count == 1
    await ended(turns[0])
    assert turns[0].tokens == [7, 7, 7] and len(await process.store.list_turns(record.session.id)) == 1


async def test_a_message_whose_caller_has_left_while_it_was_written_down_is_found_again(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())
    asked, may_go = process.holding("begin_turn")
    first = asyncio.create_task(process.send(record))
    await asked.wait()
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.create_task(process.send(record))
    await asyncio.sleep(0.05)
    may_go.set()
    turn = await again
    assert first.cancelled() and turn.turn == 1 == record.session.turn_count
    await ended(turn)


async def test_another_message_meanwhile_is_told_that_the_session_is_busy(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())
    process.verifier.may_answer.clear()
    asked, may_go = process.holding("begin_turn")
    first = asyncio.create_task(process.send(record))
    await asked.wait()
    others = [asyncio.create_task(process.send(record, name, "other")) for name in ("n", "")]
    reused = asyncio.create_task(process.send(record, "m", "other content"))
    await asyncio.sleep(0.05)
    may_go.set()
    refused = await asyncio.gather(*others, reused, return_exceptions=True)
    assert list(map(type, refused)) == [SessionBusyError, SessionBusyError, RequestIdReusedError]
    process.verifier.may_answer.set()
    await ended(await first)


async def test_generations_and_sessions_asked_for_twice_at_once_are_one(start: Start) -> None:
    process = await start("a")
    generation = Generation("hello", SAID, 2, name=RequestName("g", b"g"))
    generated = await asyncio.gather(
        *(process.sessions.generate(generation, NO_TRACE, AdmissionWait()) for _ in range(4))
    )
    ids = {tuple(turn.started.session_id for turn in turns) for turns in generated}
    assert len(ids) == 1
    for turn in generated[0]:
        await ended(turn)
    new = NewSession(name=RequestName("s", b"s"))
    created = await asyncio.gather(*(process.sessions.create(new) for _ in range(4)))
    assert len({record.session.id for record in created}) == 1
    assert len((await process.sessions.page(10, None, ANONYMOUS))[0]) == 1


async def test_a_session_forked_twice_by_one_request_is_one_fork(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())
    await ended(await process.send(record))
    name = RequestName("f", b"f")
    forks = await asyncio.gather(
        *(process.sessions.fork(record.session.id, Fork(None, name=name), ANONYMOUS) for _ in range(4))
    )
    assert len({fork.session.id for fork in forks} | {record.session.id}) == 2
    assert all(fork is forks[0] for fork in forks), "and one record of it"
    assert forks[0].session.tokens == record.session.tokens
    with pytest.raises(RequestIdReusedError):
        await process.sessions.fork(record.session.id, Fork(0, name=RequestName("f", b"other")), ANONYMOUS)


async def test_a_fork_asked_of_two_processes_at_once_is_one_fork(start: Start) -> None:
    first, second = await start("a"), await start("b")
    record = await first.sessions.create(NewSession())
    await ended(await first.send(record))
    asked, may_go = first.holding("create_sessions")
    name = RequestName("f", b"f")
    forking = asyncio.create_task(first.sessions.fork(record.session.id, Fork(None, name=name), ANONYMOUS))
    await asked.wait()
    await second.take_for_dead(first)
    await second.taken_over(record.session.id)
    fork = await second.sessions.fork(record.session.id, Fork(None, name=name), ANONYMOUS)
    may_go.set()
    with pytest.raises(SessionMovedError):
        await forking
    assert len((await second.sessions.page(10, None, ANONYMOUS))[0]) == 2
    assert fork.session.id in {row.id for row in (await second.sessions.page(10, None, ANONYMOUS))[0]}


# --- a drain


async def test_a_turn_that_is_being_written_down_when_a_drain_is_over_is_left_to_others(start: Start) -> None:
    first, second = await start("a"), await start("b")
    record = await first.sessions.create(NewSession())
    asked, may_go = first.holding("begin_turn")
    sending = asyncio.create_task(first.send(record))
    await asked.wait()
    await first.sessions.tasks.drain(0)
    may_go.set()
    turn = await sending
    await until(lambda: not first.sessions.tasks.turns)
    assert not turn.tokens and record.running is None
    with pytest.raises(ShuttingDownError):
        await first.send(record, "later")
    await second.take_for_dead(first)
    taken_over = await second.taken_over(record.session.id)
    gone_on = taken_over.turns.get(1)
    await ended(gone_on)
    assert gone_on.tokens == [7, 7, 7]
    assert await second.send(taken_over) is gone_on, "the same request finds it there"


async def test_a_message_that_waits_for_another_to_be_written_down_is_refused_by_a_drain(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())
    asked, may_go = process.holding("begin_turn")
    first = asyncio.create_task(process.send(record))
    await asked.wait()
    second = asyncio.create_task(process.send(record, "n"))
    await asyncio.sleep(0.05)
    draining = asyncio.create_task(process.sessions.tasks.drain(5))
    await asyncio.sleep(0.05)
    may_go.set()
    with pytest.raises(ShuttingDownError):
        await second
    await ended(await first)
    await draining


# --- a session that changes hands


async def test_an_old_record_begins_nothing_beside_a_new_one(start: Start) -> None:
    first, second = await start("a"), await start("b")
    old = await first.sessions.create(NewSession())
    await ended(await first.send(old))
    await second.take_for_dead(first)
    theirs = await second.taken_over(old.session.id)
    await ended(await second.send(theirs, "second"))
    await second.sessions.takeover._ownership.leave()
    await first.store.register_owner(first.me)
    first.loaded.remove(old)  # as `_drop_lost` does once it has joined again
    new = await first.taken_over(old.session.id)
    assert new is not old and new.session.turn_count == 2
    with pytest.raises(SessionMovedError):
        await first.send(old, "third")
    turn = await first.send(new, "third")
    await ended(turn)
    assert turn.turn == 3 and new.session.turn_count == 3 and old.session.turn_count == 1


async def test_a_process_that_lost_ownership_writes_and_keeps_nothing(start: Start) -> None:
    first, second = await start("a"), await start("b")
    record = await first.sessions.create(NewSession())
    await second.take_for_dead(first)
    theirs = await second.taken_over(record.session.id)
    with pytest.raises(SessionMovedError):
        await first.send(record)
    assert first.loaded.find(record.session.id) is None and not record.running
    owner = await first.sessions.takeover.locate(record.session.id, "")
    assert owner is not None and owner.id == second.me.id
    turn = await second.send(theirs)
    await ended(turn)
    assert turn.turn == 1 and turn.tokens == [7, 7, 7]


async def test_a_turn_that_was_taken_over_while_it_ran_ends_once_where_it_is(start: Start) -> None:
    first, second = await start("a"), await start("b")
    record = await first.sessions.create(NewSession())
    first.verifier.may_answer.clear()
    turn = await first.send(record)
    await first.verifier.asked.wait()
    await second.take_for_dead(first)
    theirs = (await second.taken_over(record.session.id)).turns.get(1)
    await ended(theirs)
    first.verifier.may_answer.set()
    await until(lambda: not first.sessions.tasks.turns)
    assert theirs.tokens == [7, 7, 7] and theirs.ended is not None
    assert theirs.ended.finish_reason is FinishReason.MAX_TOKENS
    assert first.loaded.find(record.session.id) is None
    stored = await second.store.list_turns(record.session.id)
    assert len(stored) == 1 and stored[0].end is not None
    assert turn.tokens == theirs.tokens, "a reader here reads the same"
    assert second.watching.totals.finished == {"max_tokens": 1}
    assert not first.watching.totals.finished, "only its owner counts the turn as finished"
    assert first.watching.totals.failed == {"SESSION_MOVED": 1}


async def test_tokens_are_not_told_that_only_another_process_may_write(start: Start) -> None:
    first, second = await start("a"), await start("b")
    record = await first.sessions.create(NewSession())
    first.verifier.may_answer.clear()
    turn = await first.send(record)
    await first.verifier.asked.wait()
    persistence = first.sessions._persistence
    await persistence.write_ahead(record.stored, turn, [7])
    await second.take_for_dead(first)
    theirs = (await second.taken_over(record.session.id)).turns.get(1)
    with pytest.raises(SessionMovedError):
        await persistence.write_ahead(record.stored, turn, [8])
    await ended(theirs)
    first.verifier.may_answer.set()
    await until(lambda: not first.sessions.tasks.turns)


async def commands(*said: Command) -> AsyncIterator[Command]:
    for command in said:
        yield command


async def told(process: Process, *said: Command) -> list[ChatEvent]:
    async with asyncio.timeout(60):
        return [event async for event in ChatStream(process.sessions, NO_TRACE).run(commands(*said))]


async def test_a_chat_whose_session_moves_twice_finds_its_turn_wherever_it_is(start: Start) -> None:
    first, second = await start("a"), await start("b")
    record = await first.sessions.create(NewSession())
    resume = StartChat(record.session.id, NewSession())
    message = SendMessage(UserMessage(from_user("hello"), SAID, RequestName("m", b"hello")))
    await second.take_for_dead(first)
    await second.taken_over(record.session.id)
    events = await told(first, resume, message)
    assert isinstance(events[-1], ChatClosing) and isinstance(events[-1].error, SessionMovedError)
    events = await told(second, resume, message)
    assert [event.turn for event in events if isinstance(event, TurnHappened)] == [1] * (len(events) - 1)
    await second.sessions.takeover._ownership.leave()
    await first.store.register_owner(first.me)
    back = await first.taken_over(record.session.id)
    again = await told(first, resume, message)
    assert {event.turn for event in again if isinstance(event, TurnHappened)} == {1}
    assert back.turns.get(1).tokens == [7, 7, 7] and back.session.turn_count == 1


async def test_a_caller_that_leaves_a_chat_while_its_turn_runs_leaves_no_task(start: Start) -> None:
    process = await start("a")
    process.verifier.may_answer.clear()

    async def lasting() -> AsyncIterator[Command]:
        yield StartChat(None, NewSession())
        yield SendMessage(UserMessage(from_user("hello"), SAID))
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    events = ChatStream(process.sessions, NO_TRACE).run(lasting())
    opened, begun = await anext(events), await anext(events)
    assert isinstance(opened, SessionOpened) and isinstance(begun, TurnHappened)
    await events.aclose()
    assert not process.sessions.chats
    (turn,) = process.sessions.tasks.turns
    process.verifier.may_answer.set()
    await ended(turn.record)
    await until(lambda: asyncio.all_tasks() == before)
    assert turn.record.tokens == [7, 7, 7], "the turn goes on without its reader"


async def test_an_error_of_reading_commands_ends_the_chat_after_its_turn_as_itself(start: Start) -> None:
    process = await start("a")

    async def broken() -> AsyncIterator[Command]:
        yield StartChat(None, NewSession())
        yield SendMessage(UserMessage(from_user("hello"), SAID))
        raise ZeroDivisionError

    events: list[ChatEvent] = []

    async def read() -> None:
        async for event in ChatStream(process.sessions, NO_TRACE).run(broken()):
            events.append(event)

    with pytest.raises(ZeroDivisionError):
        await read()
    last = events[-1]
    assert isinstance(last, TurnHappened) and isinstance(last.event, TurnEnded)


async def test_a_session_deleted_while_a_message_is_written_down_leaves_nothing(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())
    asked, may_go = process.holding("begin_turn")
    sending = asyncio.create_task(process.send(record))
    await asked.wait()
    await process.sessions.delete(record.session.id, ANONYMOUS)
    may_go.set()
    with pytest.raises(SessionMovedError):
        await sending
    assert not process.sessions.tasks.turns and process.loaded.find(record.session.id) is None
    assert await process.store.find_session(record.session.id) is None


# --- names that no database could keep


async def test_a_request_whose_name_no_database_could_keep_is_not_looked_for(start: Start) -> None:
    process = await start("a")
    record = await process.sessions.create(NewSession())
    asked, _ = process.holding("sessions_of_request")
    takeover, name = process.sessions.takeover, "a\0b"
    async with asyncio.timeout(60):
        for listed in (True, False):
            assert await takeover.locate_request(name, "", listed=listed) is None
        assert await takeover.locate_fork(record.session.id, name, "") is None
    assert not asked.is_set(), "PostgreSQL would refuse to look, and the store seem to be away"
