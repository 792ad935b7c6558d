"""Chats and single answers on the paper model, whose every token can be worked out."""

import threading
import time

import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client, PeerError, Settings
from slipstream.v1 import orchestrator_pb2, session_pb2
from tests.system.conftest import LASTING, paper_tokens, settled_load_of

pytestmark = pytest.mark.essential

PROMPT = [10, 20, 30, 40, 50]


@pytest.mark.parametrize("draft_length", [0, 1, 3, 5, 8, 16])
def test_the_tokens_are_those_worked_out_on_paper(client: Client, draft_length: int) -> None:
    result = client.generate(PROMPT, Settings(max_token_count=100, draft_length=draft_length)).wait()
    assert result.token_ids == paper_tokens(PROMPT, 100)
    assert result.finish_reason == "MAX_TOKENS"
    assert result.generated_token_count == 100
    if draft_length:
        assert result.accepted_token_count + result.round_count == 100
    else:  # the target continues by itself: a round is a stretch of its steps
        assert result.accepted_token_count == 0
        assert 1 <= result.round_count <= 100
    assert (result.draft_token_count > 0) == (draft_length > 0)
    if draft_length:
        expected = sum(0.8**i for i in range(1, draft_length + 1)) / draft_length
        assert result.acceptance_rate == pytest.approx(expected, abs=0.15)
        assert len(result.drafted_per_position) == draft_length
        assert sum(result.accepted_per_position) == result.accepted_token_count


def test_text_messages_and_tokens_are_the_same_prompt(client: Client) -> None:
    settings = Settings(max_token_count=20)
    rendered = "<|start|>uHello<|end|><|start|>a"
    by_text = client.generate(rendered, settings).wait()
    by_messages = client.answer([("user", "Hello")], settings).wait()
    assert by_text.token_ids == by_messages.token_ids
    assert by_text.prompt_token_count == by_messages.prompt_token_count


def test_a_long_prompt_is_prefilled_in_chunks_and_answered_alike(client: Client) -> None:
    prompt = [3 + (i * 7) % 250 for i in range(3000)]
    result = client.generate(prompt, Settings(max_token_count=10)).wait()
    assert result.token_ids == paper_tokens(prompt, 10)


def test_a_second_turn_prefills_only_its_new_tokens(client: Client) -> None:
    with client.chat() as chat:
        first = chat.send("x" * 100, Settings(max_token_count=30)).wait()
        second = chat.send("again", Settings(max_token_count=30)).wait()
    assert first.cached_token_count == 0
    # All but the last committed token, which was chosen and never appended.
    known = first.prompt_token_count + first.generated_token_count - 1
    assert second.cached_token_count == known
    new = ["<|end|>", "<|start|>", "u", *"again", "<|end|>", "<|start|>", "a"]
    assert second.prompt_token_count - known == 1 + len(new)


def test_a_new_session_reuses_the_whole_pages_of_an_equal_beginning(client: Client) -> None:
    system = "s" * 100
    for expected in (0, 96):
        with client.chat(system=system) as chat:
            result = chat.send("hi", Settings(max_token_count=2)).wait()
            assert result.cached_token_count >= expected
            assert result.cached_token_count % 16 == 0


def test_a_session_is_resumed_by_its_id_and_remembers(client: Client) -> None:
    with client.chat(system="Be brief.") as chat:
        session_id = chat.session_id
        first = chat.send("one", Settings(max_token_count=8)).wait()
    with client.chat(session_id=session_id) as chat:
        second = chat.send("two", Settings(max_token_count=8)).wait()
    assert second.prompt_token_count > first.prompt_token_count + first.generated_token_count
    got = client.stub.GetSession(orchestrator_pb2.GetSessionRequest(session_id=session_id))
    roles = [session_pb2.Role.Name(message.role).removeprefix("ROLE_") for message in got.messages]
    assert roles == ["SYSTEM", "USER", "ASSISTANT", "USER", "ASSISTANT"]
    assert got.messages[2].content == first.text
    assert got.session.turn_count == 2
    assert not got.session.HasField("running_turn")
    assert got.session.token_count == second.prompt_token_count + second.generated_token_count


def test_what_a_session_says_does_not_depend_on_caches(client: Client, paper: LocalServices) -> None:
    def talk() -> list[list[int]]:
        with client.chat() as chat:
            return [chat.send(text, Settings(max_token_count=25)).wait().token_ids for text in ("a", "bc", "def")]

    warm, again = talk(), talk()
    assert warm == again


def test_sessions_are_listed_last_created_first_in_pages_and_deleted(client: Client) -> None:
    ids = []
    for _ in range(3):
        with client.chat() as chat:
            chat.send("x", Settings(max_token_count=1)).wait()
            ids.append(chat.session_id)
    first = client.stub.ListSessions(orchestrator_pb2.ListSessionsRequest(page_size=2))
    assert [session.id for session in first.sessions] == ids[:0:-1]
    request = orchestrator_pb2.ListSessionsRequest(page_size=2, page_token=first.next_page_token)
    assert client.stub.ListSessions(request).sessions[0].id == ids[0]
    client.stub.DeleteSession(orchestrator_pb2.DeleteSessionRequest(session_id=ids[0]))
    with pytest.raises(PeerError, match="there is no session") as caught:
        client.chat(session_id=ids[0])
    assert caught.value.reason == "SESSION_NOT_FOUND"


def test_a_stop_string_ends_the_text_before_it(client: Client) -> None:
    settings = Settings(max_token_count=60)
    whole = client.generate("hello", settings).wait()
    stop = whole.text[10:13]
    assert "�" not in stop
    stopped = client.generate("hello", Settings(max_token_count=60, stop_strings=[stop])).wait()
    assert stopped.text == whole.text[: whole.text.find(stop)]
    assert (stopped.finish_reason, stopped.stop_string, whole.stop_string) == ("STOP_STRING", stop, None)


def test_a_turns_end_tells_the_weights_that_chose_its_tokens(client: Client) -> None:
    target = client.server_info().target
    with client.chat() as chat:
        done = chat.send("x", Settings(max_token_count=1)).wait()
        watched = client.watch(chat.session_id, 1).wait()
    for result in (done, watched):
        told = (result.weights_fingerprint, result.sampling_version)
        assert told == (target.weights_fingerprint, target.sampling_version) and all(told)


def test_the_bytes_of_log_probabilities_make_the_text(client: Client) -> None:
    result = client.generate("hello", Settings(max_token_count=60, top_logprob_count=2, token_bytes=True)).wait()
    joined = b"".join(entry.token_bytes for entry in result.logprobs)
    assert joined.decode(errors="replace").strip() == result.text.strip() and joined
    for entry in result.logprobs:
        assert (entry.token_id, entry.token_bytes) in {
            (token, spelt) for (token, _), spelt in zip(entry.top, entry.top_bytes, strict=True)
        }


def test_one_seed_one_text_at_any_draft_length_and_another_seed_another_text(client: Client) -> None:
    def text(seed: int, draft_length: int) -> list[int]:
        settings = Settings(temperature=20.0, seed=seed, max_token_count=60, draft_length=draft_length)
        return client.generate(PROMPT, settings).wait().token_ids

    assert text(1, 0) == text(1, 3) == text(1, 8)
    assert text(1, 0) != text(2, 0)


def test_a_drawn_seed_is_told_and_repeats_the_text(client: Client) -> None:
    drawn = client.generate(PROMPT, Settings(temperature=20.0, max_token_count=40)).wait()
    again = client.generate(PROMPT, Settings(temperature=20.0, max_token_count=40, seed=drawn.seed)).wait()
    assert drawn.token_ids == again.token_ids


def test_a_cancelled_turn_keeps_what_it_said_and_the_chat_goes_on(client: Client) -> None:
    with client.chat(settings=LASTING) as chat:
        reply = chat.send("x")
        pieces = iter(reply)
        next(pieces)
        chat.cancel()
        for _ in pieces:
            pass
        assert reply.result.finish_reason == "CANCELLED"
        assert 0 < reply.result.generated_token_count < 8000
        after = chat.send("y", Settings(max_token_count=5)).wait()
        assert after.generated_token_count == 5
        assert after.prompt_token_count > reply.result.generated_token_count


def test_a_cancel_sent_right_behind_its_message_is_not_lost(client: Client) -> None:
    with client.chat(settings=LASTING) as chat:
        for _ in range(5):
            reply = chat.send("x")
            chat.cancel()
            assert reply.wait().finish_reason == "CANCELLED"
        chat.cancel()  # between turns: nothing happens
        assert chat.send("y", Settings(max_token_count=5)).wait().finish_reason == "MAX_TOKENS"


def test_an_abandoned_turn_keeps_what_it_said(client: Client) -> None:
    chat = client.chat(settings=LASTING)
    next(iter(chat.send("x")))
    chat.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        got = client.stub.GetSession(orchestrator_pb2.GetSessionRequest(session_id=chat.session_id))
        if not got.session.HasField("running_turn"):
            break
        time.sleep(0.02)
    assert not got.session.HasField("running_turn")
    assert got.messages[-1].role == session_pb2.ROLE_ASSISTANT
    assert 0 < got.session.token_count < 8000


def test_a_deleted_session_cancels_its_turn_and_gives_its_pages_back(client: Client, paper: LocalServices) -> None:
    with client.chat(settings=LASTING) as chat:
        reply = chat.send("unlike any other")
        pieces = iter(reply)
        next(pieces)
        client.stub.DeleteSession(orchestrator_pb2.DeleteSessionRequest(session_id=chat.session_id))
        for _ in pieces:
            pass
        assert reply.result.finish_reason == "CANCELLED"
        with pytest.raises(PeerError, match="there is no session"):
            chat.send("still there?").wait()


def test_eight_sessions_at_once_say_what_each_would_alone(client: Client) -> None:
    prompts = [[10 + i, 20, 30] for i in range(8)]
    got: dict[int, list[int]] = {}

    def work(index: int) -> None:
        settings = Settings(max_token_count=80, draft_length=index)
        got[index] = client.generate(prompts[index], settings).wait().token_ids

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {index: paper_tokens(prompt, 80) for index, prompt in enumerate(prompts)}


def test_the_server_says_what_it_serves(client: Client) -> None:
    info = client.server_info()
    assert info.target.name == "arithmetic:ends=0"
    assert info.draft.name == "arithmetic:ends=0&agreement=0.8"
    assert info.target.tokenizer_fingerprint == info.draft.tokenizer_fingerprint
    assert info.verifier_reachable
    assert info.draft_reachable


def test_timings_add_up(client: Client) -> None:
    result = client.generate(PROMPT, Settings(max_token_count=50, draft_length=3)).wait()
    parts = result.draft_time + result.verify_time + result.queue_time + result.network_time + result.orchestrator_time
    assert parts == pytest.approx(result.total_time, abs=1e-4)
    assert 0 < result.time_to_first_token <= result.total_time
    assert min(result.draft_time, result.verify_time, result.network_time) > 0


def test_pages_of_single_answers_come_back(client: Client, paper: LocalServices) -> None:
    addresses = (paper.verifier_address, paper.draft_address)
    before = [settled_load_of(address) for address in addresses]
    client.generate([99] * 200, Settings(max_token_count=50, draft_length=4)).wait()
    after = [settled_load_of(address) for address in addresses]
    assert [load.held_page_count for load in after] == [load.held_page_count for load in before]
    assert [load.sequence_count for load in after] == [load.sequence_count for load in before]
    assert all(after.step_count > before.step_count for before, after in zip(before, after, strict=True))
