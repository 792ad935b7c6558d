"""Figures of `slipstream bench`, worked out on recorded timelines."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.bench.client_load import ClientLoad
from slipstream.bench.goals import BadOptionError, is_goal, parse_goals
from slipstream.bench.lengths import Lengths
from slipstream.bench.metrics_page import acceptance_of, added
from slipstream.bench.plan import Plan, carry_out
from slipstream.bench.prompts import Conversation, made_conversations, read_conversations
from slipstream.bench.ratios import ratios
from slipstream.bench.records import Acceptance, Record
from slipstream.bench.report import Distribution, Report, report_of
from slipstream.bench.running import Run, run_load
from slipstream.bench.schedule import Schedule
from slipstream.bench.showing import as_dict, remarks
from slipstream.bench.slipstream_server import read_turn
from slipstream.transport.sse import EventParser
from slipstream.v1 import turn_pb2


def record(intended: float, chunks: list[float], ended: float, tokens: int) -> Record:
    return Record(intended, intended, chunks, ended, prompt_tokens=10, output_tokens=tokens)


TIMELINE = [
    record(0.0, [0.2, 0.3, 0.5], 0.5, 7),  # ttft 200, itl 100 and 200, tpot 300/6 = 50, e2el 500
    record(1.0, [1.4, 1.5], 1.6, 3),  # ttft 400, itl 100, tpot 200/2 = 100, e2el 600
    record(1.5, [2.0], 2.0, 1),  # ttft 500, no itl, no tpot, e2el 500
]


def test_each_time_is_worked_out_as_vllm_defines_it() -> None:
    report = report_of(TIMELINE, seconds=2.0)
    assert report.ttft.mean == pytest.approx(1100 / 3) and report.ttft.p50 == pytest.approx(400)
    assert report.itl.mean == pytest.approx(400 / 3) and report.itl.p50 == pytest.approx(100)
    assert report.tpot.mean == pytest.approx(75) and report.tpot.p50 == pytest.approx(75)
    assert report.e2el.mean == pytest.approx(1600 / 3) and report.e2el.p50 == pytest.approx(500)
    assert (report.completed, report.output_tokens, report.prompt_tokens) == (3, 11, 30)
    assert report.requests_per_second == 1.5 and report.tokens_per_second == 5.5
    assert report.total_tokens_per_second == 20.5
    assert report.tokens_per_chunk == pytest.approx(11 / 6)


def test_percentiles_are_numpys() -> None:
    values = [random.Random(number).random() for number in range(137)]
    found = Distribution.of(values)
    expected = [float(np.percentile([value * 1e3 for value in values], rank)) for rank in (50, 90, 95, 99)]
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(expected)
    assert Distribution.of([]) == Distribution()


def test_goodput_counts_what_meets_every_goal() -> None:
    report = report_of(TIMELINE, 2.0, {"ttft": 450.0, "tpot": 60.0})
    assert report.goodput is not None
    assert (report.goodput.requests, report.goodput.requests_per_second) == (1, 0.5)
    assert report.goodput.tokens_per_second == 3.5
    only_end = report_of(TIMELINE, 2.0, {"e2el": 500.5}).goodput
    assert only_end is not None and only_end.requests == 2, "an answer of one token counts too"


def test_failures_are_counted_by_kind_and_their_times_are_left_out() -> None:
    failed = Record(0.0, error="HTTP 429 rate_limit_error", retry_after=2.0)
    report = report_of([*TIMELINE, failed, failed, Record(0.0, error="timed out")], 2.0)
    assert report.failures == {"HTTP 429 rate_limit_error": 2, "timed out": 1}
    assert report.longest_retry_after == 2.0
    assert report.ttft == report_of(TIMELINE, 2.0).ttft


def test_acceptance_of_the_answers_counts_before_the_servers_counters() -> None:
    told = record(0.0, [0.1], 0.1, 1)
    told.acceptance = Acceptance(10, 6, 3)
    counters = Acceptance(1000, 1, 1)
    by_answers = report_of([told, told], 1.0, counters=counters)
    assert by_answers.acceptance == Acceptance(20, 12, 6) and by_answers.acceptance_source == "answers"
    assert by_answers.as_dict()["acceptance"]["rate"] == 0.6
    assert by_answers.as_dict()["acceptance"]["mean_length"] == 3.0
    by_counters = report_of(TIMELINE, 1.0, counters=counters)
    assert by_counters.acceptance == counters and by_counters.acceptance_source == "counters"


def test_counters_are_read_as_vllm_and_slipstream_name_them() -> None:
    page = "\n".join(
        [
            "# HELP vllm:spec_decode_num_drafts_total drafts",
            'vllm:spec_decode_num_drafts_total{engine="0"} 4.0',
            'vllm:spec_decode_num_drafts_total{engine="1"} 6.0',
            'vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0',
            'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 99.0',
        ]
    )
    before = acceptance_of(page)
    assert before == Acceptance(30, 12, 10)
    assert acceptance_of(page.replace("vllm:", "slipstream_")) == before
    assert acceptance_of("up 1\n") is None
    assert added(before, Acceptance(50, 22, 14)) == Acceptance(20, 10, 4)
    assert added(Acceptance(50, 22, 14), before) is None, "the server began again"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_whole_however_the_stream_is_cut(size: int) -> None:
    stream = 'data: {"a": "é"}\r\n\r\n: a comment\n\nevent: x\ndata: one\ndata: two\n\ndata:[DONE]\n\n'.encode()
    parser = EventParser()
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [data for part in parts for data in parser.feed(part)] == ['{"a": "é"}', "one\ntwo", "[DONE]"]


def test_goals_are_written_as_vllm_writes_them() -> None:
    assert parse_goals(["ttft:200 tpot:50", "e2el:5000"]) == {"ttft": 200.0, "tpot": 50.0, "e2el": 5000.0}
    assert is_goal("tpot:50") and not is_goal("tpot.example:50051")
    for wrong in ("itl:5", "ttft", "ttft:x", "ttft:0"):
        with pytest.raises(BadOptionError, match="--goodput must be"):
            parse_goals([wrong])


def test_a_rate_starts_conversations_at_moments_of_its_own() -> None:
    assert list(Schedule(4.0, None, 5, arrivals="constant").offsets()) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert len(list(Schedule(4.0, None, None, 2.0, "constant").offsets())) == 8
    poisson = list(Schedule(50.0, None, 2000).offsets())
    assert poisson == list(Schedule(50.0, None, 2000).offsets()) != list(Schedule(50.0, None, 2000, seed=1).offsets())
    # The mean of 2,000 such times lies within a tenth of 1/50 s, but once in 10^5 seeds.
    assert poisson[-1] / 1999 == pytest.approx(1 / 50, rel=0.1)


def test_lengths_are_fixed_or_drawn() -> None:
    rng = random.Random(0)
    assert {Lengths.parse("128", "--x").draw(rng) for _ in range(50)} == {128}
    drawn = {Lengths.parse("64:66", "--x").draw(rng) for _ in range(200)}
    assert drawn == {64, 65, 66}
    for text in ("normal:3:9", "exponential:2"):
        assert min(Lengths.parse(text, "--x").draw(rng) for _ in range(200)) == 1
    for wrong in ("", "0", "9:3", "1:2:3", "normal:5", "normal:0:1", "exponential:x", "uniform:1:2"):
        with pytest.raises(BadOptionError, match="--x must be"):
            Lengths.parse(wrong, "--x")


def tokens_in(text: str) -> int:
    return -(-len(text) // 2)


async def two_letters_a_token(text: str) -> int:
    return tokens_in(text)


async def no_tokenizer(text: str) -> None:
    return None


async def test_made_prompts_have_exactly_their_tokens_and_depend_on_the_seed() -> None:
    prompt, output = Lengths.parse("20:60", "--x"), Lengths.parse("5:9", "--x")
    made = await made_conversations(30, 2, prompt, output, 3, two_letters_a_token)
    assert made == await made_conversations(30, 2, prompt, output, 3, two_letters_a_token)
    assert made != await made_conversations(30, 2, prompt, output, 4, two_letters_a_token)
    exact = [conversation for conversation in made if conversation.exact]
    assert len(exact) > 20
    for conversation in exact:
        assert all(20 <= tokens_in(text) <= 60 for text in conversation.prompts)
        assert 5 <= conversation.max_tokens <= 9
    guessed = await made_conversations(3, 1, prompt, output, 3, no_tokenizer)
    assert not any(conversation.exact for conversation in guessed)
    assert all(20 <= len(conversation.prompts[0].split()) <= 60 for conversation in guessed)


def test_a_file_has_messages_prompts_or_sharegpts_conversations(tmp_path: Path) -> None:
    output = Lengths.parse("7", "--x")
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    file.write_text(f'{json.dumps({"messages": messages})}\n\n{{"prompt": "once", "max_tokens": 3}}\n')
    assert read_conversations(file, output, 0) == [
        Conversation(("hello",), 7, (("system", "be brief"),)),
        Conversation(("once",), 3),
    ]
    shared = [{"id": "1", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}]
    file.write_text(json.dumps(shared, indent=1))
    assert read_conversations(file, output, 0) == [Conversation(("hi",), 7)]


def test_only_a_newline_ends_a_line_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a\u2028b\x85c"}\r\n{"prompt": "d"}\n', newline="")
    found = read_conversations(file, Lengths.parse("7", "--x"), 0)
    assert found == [Conversation(("a\u2028b\x85c",), 7), Conversation(("d",), 7)]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '"text"', "{}", '{"prompt": ""}', '{"prompt": "a", "max_tokens": 0}', '{"messages": []}'],
)
def test_a_line_that_is_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "good"}}\n{line}\n')
    with pytest.raises(BadOptionError, match=r"line 2 of .*prompts\.jsonl"):
        read_conversations(file, Lengths.parse("7", "--x"), 0)


class ScriptedServer:
    """A server in memory. It answers when it is let go."""

    def __init__(self, name: str, log: list[str], fails: bool = False, retry_after: float = 0.0) -> None:
        self.name, self._log, self._fails, self._retry_after = name, log, fails, retry_after
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def describe(self) -> str:
        return "model"

    async def count_tokens(self, text: str) -> int | None:
        return len(text.split())

    async def counters(self) -> Acceptance | None:
        return None

    async def close(self) -> None:
        pass

    async def hold(self, conversation: Conversation, intended: float) -> AsyncIterator[Record]:
        self._log.append(self.name)
        self.asked.set()
        await self.gate.wait()
        made = record(intended, [intended + 1.0], intended + 1.0, 1)
        if self._fails:
            made.fail("broken", self._retry_after)
        yield made


async def test_latencies_count_from_the_intended_start_however_late_a_request_is_sent() -> None:
    log: list[str] = []
    server = ScriptedServer("A", log)
    server.gate.clear()
    schedule = Schedule(1000.0, 1, 5, arrivals="constant")
    running = asyncio.create_task(run_load(server, [Conversation(("hello",), 1)], schedule))
    await server.asked.wait()
    await asyncio.sleep(0.05)
    assert log == ["A"], "four of them wait in the client, since one may run at a time"
    server.gate.set()
    _, records = await running
    starts = [one.intended - records[0].intended for one in records]
    assert starts == pytest.approx([0.0, 0.001, 0.002, 0.003, 0.004])


async def test_two_servers_take_turns_and_the_order_alternates() -> None:
    log: list[str] = []
    servers = [ScriptedServer(name, log) for name in "AB"]
    plan = Plan(Schedule(None, 1, 2), rounds=3, warm_up=0)
    findings = await carry_out(plan, servers)
    assert "".join(log) == "AABB" + "BBAA" + "AABB"
    assert [outcome.total({}).completed for outcome in findings.outcomes] == [6, 6]
    shown = as_dict(plan, findings)
    assert [len(server["rounds"]) for server in shown["servers"]] == [3, 3]
    assert shown["ratios"]["ttft_p50"]["median"] == pytest.approx(1.0)
    assert json.loads(json.dumps(shown)) == shown


async def test_warming_up_counts_nothing() -> None:
    log: list[str] = []
    findings = await carry_out(Plan(Schedule(None, 1, 2), warm_up=3), [ScriptedServer("A", log)])
    assert len(log) == 5 and findings.outcomes[0].total({}).completed == 2


async def test_what_limits_the_figures_is_remarked() -> None:
    plan = Plan(Schedule(None, 1, 3), warm_up=0)
    findings = await carry_out(plan, [ScriptedServer("A", [], fails=True)])
    told = list(remarks(plan, findings))
    assert "A: 3 requests failed: broken" in told
    assert "A: asked to wait for up to 0 s (Retry-After)" in told


@pytest.mark.parametrize(("rate", "waits"), [(None, [0.07, 0.07]), (1000.0, [])])
async def test_a_worker_waits_as_it_is_asked_to_and_a_rate_does_not(
    rate: float | None, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr("slipstream.bench.running.asyncio.sleep", noted)
    server = ScriptedServer("A", [], fails=True, retry_after=0.07)
    schedule = Schedule(rate, 1, 2, arrivals="constant")
    await Run(server, [Conversation(("hello",), 1)], schedule).load()
    assert [seconds for seconds in waited if seconds == 0.07] == waits


def test_a_busy_client_is_told() -> None:
    assert ClientLoad(0.95, 0.001).limited and ClientLoad(0.1, 0.5).limited
    assert not ClientLoad(0.1, 0.001).limited


def test_ratios_have_their_spread_over_the_rounds() -> None:
    def rounds(*factors: float) -> list[Report]:
        return [report_of([record(0.0, [factor], factor, 2)], 1.0) for factor in factors]

    found = ratios(rounds(0.1, 0.2, 0.1), rounds(0.2, 0.2, 0.3))["ttft_p50"]
    assert (found.median, found.least, found.most) == pytest.approx((2.0, 1.0, 3.0))


def test_tokens_without_text_are_no_chunk_over_grpc_as_over_http() -> None:
    async def events() -> AsyncIterator[turn_pb2.TurnEvent]:
        for text in ("", "a", "", "bc"):
            yield turn_pb2.TurnEvent(delta=turn_pb2.TurnDelta(text=text, token_ids=[5]))
        yield turn_pb2.TurnEvent(finished=turn_pb2.TurnFinished(usage=turn_pb2.Usage(generated_token_count=4)))

    taken = record(0.0, [], 0.0, 0)
    asyncio.run(read_turn(events(), taken))
    assert (len(taken.chunks), taken.output_tokens) == (2, 4)
