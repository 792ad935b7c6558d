"""Ownership of a session moves between any two awaits of a call: no stale owner claims a change."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from opentelemetry.context import Context

from orchestrator.errors import SessionMovedError, StoreUnavailableError, TurnNotFoundError
from orchestrator.rounds.drafts import Drafts
from orchestrator.sessions.admission.demand import AdmissionWait
from orchestrator.sessions.admission.principal import ANONYMOUS
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import from_user
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.entrance.requests import Fork, NewSession, UserMessage
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.turn_record import TurnRecord
from orchestrator.store.database import DatabaseAtHand, Transaction
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import OwnerRow
from orchestrator.store.sqlite import SqliteConnection
from orchestrator.store.store import Store
from orchestrator.store.tables import prepare
from orchestrator.watching.watching import Watching
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.structures.trials import StructureTrials
from tests.scripted_peers import MODEL, Draft, Verifier, rounds_over

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
CODEC = Codec.from_files(FILES)
SERVED = replace(MODEL, vocabulary_size=CODEC.tokenizer.get_vocab_size())
SAID, NO_TRACE = GenerationSettings(draft_length=0, max_token_count=3), Context()
MOST_STEPS = 400
OURS, THEIRS = OwnerRow("a" * 16, "at a", "a"), OwnerRow("b" * 16, "at b", "b")


class SteppingLoop(asyncio.SelectorEventLoop):
    """An event loop that calls ``on_step`` before it runs what is ready."""

    on_step: Callable[[], None] = staticmethod(lambda: None)

    def _run_once(self) -> None:
        self.on_step()
        super()._run_once()  # type: ignore[misc]


class YieldingDatabase(DatabaseAtHand):
    """A database in memory whose callers wait before and after their work, as for a real one."""

    is_away = False

    async def run(self, work: Callable[[Transaction], Any], *, reads: bool = False) -> Any:
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailableError("away")
        answer = await super().run(work, reads=reads)
        await asyncio.sleep(0)
        return answer


@dataclass
class Snapshot:
    """What the store held when ownership moved."""

    sessions: set[str]
    turns: dict[tuple[str, int], bool]
    """By session and number: whether the turn's end is written."""


def memory() -> SqliteConnection:
    connection = SqliteConnection(None)
    with connection.preparing():
        prepare(connection, "BLOB")
    return connection


class System:
    """One process's sessions over a store that another process owns sessions in too."""

    def __init__(self) -> None:
        self.database = YieldingDatabase(memory, "memory")
        self.database.open()
        self.store = Store(self.database)
        self.verifier = Verifier()
        self.verifier.may_answer.set()
        # A clock that leaps: this process never knows by its beats alone that it is an owner still.
        self.clock: Callable[[], float] = itertools.count(0.0, 1e6).__next__
        self.ownership = Ownership(self.store, OURS, 600, lambda: self.clock())
        self.loaded = LoadedSessions(max_count=100, ttl_seconds=60)
        self.sessions = Sessions(self.loaded, self.store, self.ownership, lambda: "", Watching(), max_count=100)
        structures = StructureTrials(FILES["tokenizer.json"], MODEL.vocabulary_size, MODEL.end_token_ids)
        self.sessions.serve(Pair(SERVED, Drafts(), CODEC, rounds_over(Draft(), self.verifier), structures, 0, 8))
        self.snapshot: Snapshot | None = None

    def move(self, session_id: str) -> None:
        """Another process takes the session over, and runs nothing."""
        connection = self.database._connection
        assert connection is not None
        sessions = {row[0] for row in connection.rows("SELECT id FROM sessions")}
        turns = {
            (row[0], row[1]): row[2] for row in connection.rows("SELECT session_id, turn, ended IS NOT NULL FROM turns")
        }
        self.snapshot = Snapshot(sessions, turns)
        connection.execute("DELETE FROM owners WHERE id = ?", (OURS.id,))
        connection.execute("UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE id = ?", (THEIRS.id, session_id))

    async def send(self, record: SessionRecord, name: str) -> TurnRecord:
        message = UserMessage(from_user("hello"), SAID, RequestName(name, b"hello"))
        return await self.sessions.send(record, message, GenerationSettings(), NO_TRACE, AdmissionWait())


async def finished(turn: TurnRecord) -> None:
    """Wait for a turn's end. What broke it off."""
    event = asyncio.Event()
    with turn.waking(event):
        while turn.ended is None:
            if turn.broken_off is not None:
                raise turn.broken_off
            await event.wait()
            event.clear()
    assert turn.ended.error is None or turn.ended.finish_reason is not None


# --- what is asked, and what has to be true in the store when it was answered


async def get(system: System, name: str) -> object:
    return await system.sessions.get(name, ANONYMOUS)


async def delete(system: System, name: str) -> object:
    await system.sessions.delete(name, ANONYMOUS)
    return None


async def cancel(system: System, name: str) -> object:
    record = await system.sessions.get(name, ANONYMOUS)
    await system.sessions.cancel(record, 2)
    return None


async def cancel_what_it_does_not_know(system: System, name: str) -> object:
    with pytest.raises(TurnNotFoundError):
        await system.sessions.cancel(system.sessions.get_loaded(name, ANONYMOUS), 7)
    return None


async def cancel_by_request(system: System, name: str) -> object:
    with pytest.raises(TurnNotFoundError):
        await system.sessions.turn_of_request(system.sessions.get_loaded(name, ANONYMOUS), "unknown")
    return None


async def fork(system: System, name: str) -> object:
    record = await system.sessions.fork(name, Fork(1, name=RequestName("fork", b"f")), ANONYMOUS)
    return record.session.id


async def fork_without_a_name(system: System, name: str) -> object:
    record = await system.sessions.fork(name, Fork(1, name=RequestName()), ANONYMOUS)
    return record.session.id


async def export(system: System, name: str) -> object:
    record = await system.sessions.get(name, ANONYMOUS)
    return [turn async for turn in system.sessions.turns(record)]


async def watch(system: System, name: str) -> object:
    return (await system.sessions.turn(name, 1, ANONYMOUS)).tokens


async def send(system: System, name: str) -> object:
    turn = await system.send(await system.sessions.get(name, ANONYMOUS), "next")
    return turn.turn


async def send_and_wait(system: System, name: str) -> object:
    turn = await system.send(await system.sessions.get(name, ANONYMOUS), "next")
    await finished(turn)
    return turn.turn


async def send_again(system: System, name: str) -> object:
    turn = await system.send(await system.sessions.get(name, ANONYMOUS), "first")
    return turn.turn


async def create_again(system: System, name: str) -> object:
    return (await system.sessions.create(NewSession(name=RequestName("made", b"made")))).session.id


async def resume(system: System, name: str) -> object:
    return await system.sessions.resume(name, GenerationSettings(), ANONYMOUS)


Holds = Callable[[Snapshot, str, Any], bool]


@dataclass(frozen=True)
class Asked:
    """A call, and what the store has to have held before the move if it was answered all the
    same."""

    call: Callable[[System, str], Awaitable[object]]
    claims: Holds | None = None
    """None: it only reads, so it may have been answered from before the move."""
    with_running_turn: bool = field(default=False)


ASKED = [
    Asked(get),
    Asked(export),
    Asked(watch),
    Asked(resume),
    Asked(send_again),
    Asked(cancel_what_it_does_not_know),
    Asked(cancel_by_request),
    Asked(create_again),
    Asked(delete, lambda held, name, _: name not in held.sessions),
    Asked(cancel, lambda held, name, _: held.turns.get((name, 2), False), with_running_turn=True),
    Asked(fork, lambda held, _, made: made in held.sessions),
    Asked(fork_without_a_name, lambda held, _, made: made in held.sessions),
    Asked(send, lambda held, name, turn: (name, turn) in held.turns),
    Asked(send_and_wait, lambda held, name, turn: held.turns.get((name, turn), False)),
]


async def outcome(asked: Asked, step: int, *, notices: bool) -> bool:
    """Return whether a call had ended before the session's ownership moved at a step.

    With ``notices`` this process evicts the session at once.
    """
    system = System()
    await system.store.register_owner(THEIRS)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteppingLoop)
    async with system.sessions:
        record = await system.sessions.create(NewSession(name=RequestName("made", b"made")))
        name = record.session.id
        await finished(await system.send(record, "first"))
        if asked.with_running_turn:
            system.verifier.may_answer.clear()
            await system.send(record, "second")
        left, evicting = step, list[asyncio.Task[None]]()

        def count() -> None:
            nonlocal left
            if left == 0:
                system.move(name)
                if notices:
                    system.loaded.remove(record)
                    evicting.append(loop.create_task(system.sessions._eviction.evict_moved_session(record)))
            left -= 1

        if step == 0:
            system.move(name)
        else:
            loop.on_step = count
        answer: object = None
        try:
            async with asyncio.timeout(60):
                answer = await asked.call(system, name)
            refused = False
        except SessionMovedError:
            refused = True
        finally:
            loop.on_step = lambda: None
            system.verifier.may_answer.set()
        if system.snapshot is None:
            assert not refused, "a call fails though its process owns the session"
            return True
        if not refused:
            assert step > 0, "a stale owner answers from its memory"
            assert asked.claims is None or asked.claims(system.snapshot, name, answer), "a stale owner claims a change"
        assert system.loaded.find(name) is None or not refused, "a moved session stays in memory"
    return False


@pytest.mark.parametrize("notices", [False, True])
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.call.__name__)
def test_no_stale_owner_answers_wherever_ownership_moves(asked: Asked, notices: bool) -> None:
    with asyncio.Runner(loop_factory=SteppingLoop) as runner:
        for step in range(MOST_STEPS):
            if runner.run(outcome(asked, step, notices=notices)):
                assert step > 1
                return
    raise AssertionError("the call never ends")


async def test_an_owner_whose_beat_is_fresh_reads_from_memory() -> None:
    system = System()
    system.clock = lambda: 5.0
    async with system.sessions:
        record = await system.sessions.create(NewSession())
        system.database.is_away = True
        assert await system.sessions.get(record.session.id, ANONYMOUS) is record
        system.clock = lambda: 605.0
        with pytest.raises(StoreUnavailableError):
            await system.sessions.get(record.session.id, ANONYMOUS)
        system.database.is_away = False
        assert await system.sessions.get(record.session.id, ANONYMOUS) is record


async def test_a_cancel_that_cannot_be_written_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System()
    async with system.sessions:
        record = await system.sessions.create(NewSession())
        system.verifier.may_answer.clear()
        turn = await system.send(record, "first")
        await system.verifier.asked.wait()

        async def away(*arguments: Any) -> None:
            raise StoreUnavailableError("away")

        monkeypatch.setattr(system.store, "end_turn", away)
        with pytest.raises(StoreUnavailableError):
            await system.sessions.cancel(record, turn.turn)
        monkeypatch.undo()
        await system.sessions.cancel(record, turn.turn)
        (stored,) = await system.store.list_turns(record.session.id)
        assert stored.end is not None
