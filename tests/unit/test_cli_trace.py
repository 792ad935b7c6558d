"""A turn's rounds in parts, in sentences, in a terminal and in a file: nothing overlaps, nothing is
markup."""

from __future__ import annotations

import io
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slipstream.cli.message_json import message_json
from slipstream.cli.remarks import headline, left_out_of, notes_of, remarks_of
from slipstream.cli.timeline import Kind, Part, own_parts_of, parts_of, span_of, sums_of
from slipstream.cli.trace import write_html
from slipstream.cli.trace_html import page
from slipstream.cli.trace_rows import rows_of
from slipstream.cli.trace_screen import INKS, Footnotes, Waterfall, kinds_in_cells
from slipstream.rpc.wire import duration
from slipstream.v1 import generation_pb2, orchestrator_pb2, trace_pb2

PROPOSE, VERIFY = trace_pb2.ExchangeTrace.KIND_PROPOSE, trace_pb2.ExchangeTrace.KIND_VERIFY
FAILED, CANCELLED = trace_pb2.ROUND_OUTCOME_FAILED, trace_pb2.ROUND_OUTCOME_CANCELLED
MS = 1e-3


def exchange(kind: int, start: float, total: float | None, **fields: Any) -> trace_pb2.ExchangeTrace:
    """Times in milliseconds."""
    times = {
        name: duration(fields.pop(name) * MS) for name in ("queue", "forward", "prefill", "network") if name in fields
    }
    whole = None if total is None else duration(total * MS)
    return trace_pb2.ExchangeTrace(
        kind=kind, address="10.0.0.7:50052", start=duration(start * MS), total=whole, **times, **fields
    )


def a_round(
    number: int, start: float, total: float, *exchanges: trace_pb2.ExchangeTrace, **fields: Any
) -> trace_pb2.RoundTrace:
    """Times in milliseconds."""
    times = {name: duration(fields.pop(name, 0.0) * MS) for name in ("waited", "verifier_idle")}
    known = {"outcome": trace_pb2.ROUND_OUTCOME_RECOVERED, "exchanges": exchanges, **times}
    return trace_pb2.RoundTrace(
        number=number, start=duration(start * MS), total=duration(total * MS), **{**known, **fields}
    )


def usual_round(number: int, start: float, **fields: Any) -> trace_pb2.RoundTrace:
    """Three milliseconds for the draft, one in the queue, five of forwards, two on the way, and one
    unaccounted for."""
    return a_round(
        number,
        start,
        12.5,
        exchange(PROPOSE, start, 3, queue=0.5, forward=2, network=0.5),
        exchange(VERIFY, start + 3.5, 9, queue=1, forward=5, network=2, step_token_count=9),
        **{"waited": 3, "verifier_idle": 3.5 + 2, "draft_token_count": 8, "committed_token_count": 5, **fields},
    )


def turn(*rounds: trace_pb2.RoundTrace, **fields: Any) -> trace_pb2.TurnTrace:
    total = max((span_of(trace)[1] for trace in rounds), default=0.0) + MS
    message = trace_pb2.TurnTrace(turn=2, total=duration(total), round_count=len(rounds), rounds=rounds)
    message.start_time.FromSeconds(1_700_000_000)
    message.MergeFrom(trace_pb2.TurnTrace(**fields))
    return message


def milliseconds_of(parts: list[Part]) -> list[tuple[str, float]]:
    return [(part.kind.value, round(part.length / MS, 3)) for part in parts]


def test_a_round_is_its_parts_one_after_another() -> None:
    parts = parts_of(usual_round(1, 100))
    assert milliseconds_of(parts) == [
        ("draft", 3),
        ("idle", 0.5),
        ("network", 1),
        ("queue", 1),
        ("forward", 5),
        ("rest", 1),
        ("network", 1),
    ]
    assert parts[0].start == pytest.approx(0.1) and parts[-1].end == pytest.approx(0.1125)


def test_what_the_verifier_was_idle_before_a_round_is_drawn_and_is_not_the_rounds() -> None:
    trace = usual_round(2, 100, verifier_idle=10 + 2)  # ten until it was asked, of them 6.5 before the round
    assert milliseconds_of(parts_of(trace))[0] == ("idle", 6.5)
    assert milliseconds_of(own_parts_of(trace))[0] == ("draft", 3)
    assert parts_of(usual_round(2, 1, verifier_idle=50))[0].start == 0.0, "a turn begins at 0"


def test_time_without_an_answer_is_told_apart() -> None:
    again = a_round(1, 0, 20, exchange(VERIFY, 0, 20, queue=1, forward=5, network=2, setbacks=["UNKNOWN_HANDLE"]))
    assert milliseconds_of(parts_of(again))[0] == ("unanswered", 12)
    left = a_round(2, 0, 20, exchange(VERIFY, 4, 16, left=True), outcome=CANCELLED)
    assert milliseconds_of(parts_of(left)) == [("idle", 4), ("unanswered", 16)]
    never = a_round(3, 0, 20, exchange(VERIFY, 4, None), outcome=FAILED)
    assert milliseconds_of(parts_of(never)) == [("idle", 4), ("unanswered", 16)]
    waiting = a_round(4, 0, 20, exchange(PROPOSE, 1, None), outcome=CANCELLED)
    assert milliseconds_of(parts_of(waiting)) == [("draft", 20)]
    nothing = a_round(5, 0, 20, outcome=FAILED)
    assert milliseconds_of(parts_of(nothing)) == [("idle", 20)]
    assert parts_of(a_round(6, 5, 0)) == []


@pytest.mark.parametrize("seed", range(100))
def test_parts_follow_one_another_to_the_rounds_end_under_any_clocks(seed: int) -> None:
    rng = random.Random(seed)

    def some() -> float:
        return rng.choice((0.0, rng.uniform(0, 30)))

    start, total = some(), some()
    exchanges = [exchange(PROPOSE, start + some(), some())] * rng.randint(0, 1)
    exchanges += [exchange(VERIFY, start + some(), some(), queue=some(), forward=some(), network=some())] * rng.randint(
        0, 1
    )
    trace = a_round(1, start, total, *exchanges, waited=some(), verifier_idle=some())
    parts = parts_of(trace)
    assert all(part.length > 0 for part in parts)
    assert [part.start for part in parts[1:]] == pytest.approx([part.end for part in parts[:-1]])
    first, last = span_of(trace)
    assert sum(part.length for part in own_parts_of(trace)) <= last - first + 1e-6
    assert all(part.end <= last for part in parts)
    if any(each.kind == VERIFY for each in exchanges) or not exchanges:
        assert not parts or parts[-1].end == pytest.approx(last, abs=2e-9)
    assert sum(sums_of([trace]).values()) == pytest.approx(sum(part.length for part in parts))


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (
            a_round(17, 0, 84, exchange(VERIFY, 3, 81, queue=61, forward=15, network=5), waited=3),
            "round 17 took 84 ms: 61 ms of it waiting in the verifier's queue",
        ),
        (
            a_round(17, 0, 84, exchange(VERIFY, 3, 81, queue=61, forward=15, network=5, prefill=40)),
            "round 17 took 84 ms: 61 ms of it waiting in the verifier's queue, 40 ms for prompts",
        ),
        (
            a_round(
                1, 0, 84, exchange(VERIFY, 0, 84, queue=2, forward=80, network=2, prefill=75, step_token_count=512)
            ),
            "round 1 took 84 ms: 80 ms of it in the verifier's forward of 512 rows, 73 ms for prompts",
        ),
        (
            a_round(3, 0, 50, exchange(VERIFY, 0, 50, queue=1, forward=9, network=40)),
            "round 3 took 50 ms: 40 ms of it on the way to the verifier 10.0.0.7:50052 and back",
        ),
        (
            a_round(
                4,
                0,
                50,
                exchange(PROPOSE, 0, 40, queue=30, forward=8, network=2),
                exchange(PROPOSE, 40, 90, queue=1, forward=80, network=9),  # ahead: nothing waited for that
                exchange(VERIFY, 40, 10, queue=1, forward=8, network=1),
                waited=40,
            ),
            "round 4 took 50 ms: 40 ms of it waiting for the draft, 30 ms in its queue",
        ),
        (
            a_round(
                5,
                0,
                50,
                exchange(PROPOSE, 0, 40, error_reason="DEADLINE_EXCEEDED"),
                exchange(VERIFY, 40, 10, queue=1, forward=8, network=1),
                waited=40,
            ),
            "round 5 took 50 ms: 40 ms of it waiting for the draft, which failed: DEADLINE_EXCEEDED",
        ),
        (
            a_round(6, 0, 50, exchange(VERIFY, 40, 10, queue=1, forward=8, network=1), waited=40),
            "round 6 took 50 ms: 40 ms of it waiting for the draft",
        ),
        (
            a_round(7, 0, 50, exchange(VERIFY, 40, 10, queue=1, forward=8, network=1)),
            "round 7 took 50 ms: 40 ms of it in the orchestrator, before the verifier was asked",
        ),
        (
            a_round(
                8,
                0,
                50,
                exchange(
                    VERIFY, 0, 50, queue=1, forward=8, network=1, setbacks=["UNKNOWN_HANDLE", *["STREAM_LOST"] * 3]
                ),
            ),
            "round 8 took 50 ms: 40 ms of it without an answer of the verifier's, which was asked again: "
            "UNKNOWN_HANDLE, STREAM_LOST 3 times",
        ),
        (
            a_round(9, 0, 12_345, exchange(VERIFY, 0, 12_345), outcome=FAILED, error_reason="VERIFIER_LOST"),
            "round 9 failed after 12.3 s: 12.3 s of it without an answer of the verifier's (VERIFIER_LOST)",
        ),
        (a_round(10, 0, 0, outcome=CANCELLED), "round 10 was cancelled after 0.00 ms"),
    ],
    ids=lambda value: value.split(":")[-1].strip()[:40] if isinstance(value, str) else "",
)
def test_why_a_round_took_so_long_is_one_sentence(trace: trace_pb2.RoundTrace, sentence: str) -> None:
    assert remarks_of([trace]) == [sentence]


def test_the_slowest_is_told_and_after_a_slow_first_round_another_and_what_failed() -> None:
    rounds = [usual_round(number, 20 * number) for number in range(1, 10)]
    rounds[5] = a_round(6, 120, 84, exchange(VERIFY, 120, 84, queue=61, forward=20, network=3))
    assert [remark.split(":")[0] for remark in remarks_of(rounds)] == ["round 6 took 84 ms, 7 times the usual"]
    rounds[0] = a_round(1, 0, 200, exchange(VERIFY, 0, 200, queue=0, forward=190, network=10, prefill=185))
    rounds.append(a_round(10, 300, 1, outcome=CANCELLED))
    said = [remark.split(":")[0] for remark in remarks_of(rounds)]
    assert said == [
        "round 1 took 200 ms, 16 times the usual",
        "round 6 took 84 ms, 7 times the usual",
        "round 10 was cancelled after 1.0 ms",
    ]
    assert remarks_of([]) == []
    only = a_round(1, 0, 5, outcome=FAILED)
    assert len(remarks_of([only])) == 1, "a round is told of once"


def test_the_headline_says_of_which_rounds_the_sums_are() -> None:
    rounds = [usual_round(number, 20 * number, accepted_token_count=4) for number in range(1, 4)]
    assert headline("abc", turn(*rounds)) == (
        "session abc turn 2, begun 2023-11-14 22:13:20 UTC, took 74 ms: 3 rounds, 15 tokens, acceptance 50% (12 of 24)"
    )
    some = turn(*rounds, round_count=300, running=True)
    assert "running for 74 ms: 300 rounds, in the 3 shown, 15 tokens" in headline("abc", some)
    assert left_out_of(some).startswith("297 of 300 rounds are left out; kept are those that failed, the slowest")
    assert left_out_of(turn(*rounds)) == ""
    assert headline("abc", turn()).endswith("0 rounds, 0 tokens, no draft")
    single = a_round(1, 0, 5, committed_token_count=1)
    assert headline("abc", turn(single)).endswith("1 round, 1 token, no draft")


def test_what_went_wrong_is_noted_once() -> None:
    lost = a_round(
        1, 0, 9, exchange(VERIFY, 0, 9, error_reason="VERIFIER_LOST"), outcome=FAILED, error_reason="VERIFIER_LOST"
    )
    assert notes_of(lost) == ["failed: VERIFIER_LOST"]
    late = usual_round(2, 0)
    late.exchanges[0].error_reason = "DEADLINE_EXCEEDED"
    late.exchanges[1].setbacks.append("UNKNOWN_HANDLE")
    assert notes_of(late) == [
        "draft 10.0.0.7:50052: DEADLINE_EXCEEDED",
        "verifier 10.0.0.7:50052 asked again: UNKNOWN_HANDLE",
    ]
    assert notes_of(usual_round(3, 0)) == []


def test_cells_have_what_there_is_most_of_and_no_round_is_invisible() -> None:
    parts = [Part(Kind.PROPOSE, 0.0, 2.0), Part(Kind.FORWARD, 2.0, 5.0)]
    assert kinds_in_cells(parts, 0.0, 8.0, 8) == [Kind.PROPOSE] * 2 + [Kind.FORWARD] * 3 + [None] * 3
    assert kinds_in_cells(parts, 0.0, 8.0, 2) == [Kind.PROPOSE, None]
    tiny = [Part(Kind.IDLE, 4.00, 4.05), Part(Kind.QUEUE, 4.05, 4.06)]
    assert kinds_in_cells(tiny, 0.0, 8.0, 8) == [None] * 4 + [Kind.QUEUE] + [None] * 3
    assert kinds_in_cells([], 0.0, 8.0, 3) == [None] * 3


def shown(
    message: trace_pb2.TurnTrace, width: int, encoding: str = "utf-8", *, every_round: bool = True, **options: Any
) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=file, width=width, highlight=False, **options)
    console.print(Waterfall("0123456789abcdef", message, every_round))
    console.print(Footnotes())
    file.seek(0)
    return file.read()


def busy_turn() -> trace_pb2.TurnTrace:
    rounds = [
        usual_round(
            number,
            20 * number,
            proposer=generation_pb2.Speculation.PROPOSER_NGRAM,
            accepted_token_count=4,
            least_margin=0.125,
        )
        for number in range(1, 31)
    ]
    rounds[16] = a_round(17, 340, 84, exchange(VERIFY, 340, 84, queue=61, forward=20, network=3))
    rounds[29].outcome, rounds[29].error_reason = FAILED, "VERIFIER_LOST"
    return turn(*rounds, round_count=100, trace_id="4bf92f3577b34da6a3ce929d0e0e4736")


@pytest.mark.parametrize("width", [80, 100, 140, 220])
def test_a_waterfall_fits_the_terminal_and_has_all_that_there_is_room_for(width: int) -> None:
    text = shown(busy_turn(), width)
    rows = [line for line in text.splitlines() if re.match(r" +\d+ +\d+\.\d ", line)]
    assert max(len(line) for line in text.splitlines()) <= width
    assert [int(row.split()[0]) for row in rows] == list(range(1, 31))
    assert "8/4/5" in rows[0] and "n-gram" in rows[0] and " 12.5 " in rows[0]
    assert rows[16].count(INKS[Kind.QUEUE].mark) > 2 * rows[0].count(INKS[Kind.QUEUE].mark)
    joined = " ".join(text.split())
    for part in (
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "70 of 100 rounds are left out",
        "round 17 took 84 ms",
        "failed: VERIFIER_LOST",
    ):
        assert part in joined
    assert ("0.125" in rows[0]) is (width >= 100)
    assert ("a wider terminal" in joined) is (width < 100)


@pytest.mark.parametrize("width", [80, 100, 220])
def test_rounds_that_need_no_look_share_a_line_with_their_means(width: int) -> None:
    turn = busy_turn()
    turn.rounds[5].least_margin, turn.rounds[6].draft_token_count = 0.0625, 9
    text = shown(turn, width, every_round=False)
    rows = [line for line in text.splitlines() if re.match(r" +[\d-]+ +\d+\.\d ", line)]
    assert max(len(line) for line in text.splitlines()) <= width
    assert [row.split()[0] for row in rows] == ["1", "2-16", "17", "18-29", "30"]
    assert " 12.5 " in rows[1] and "8.1/4.0/5.0 n-gram" in rows[1] and "8/4/5" in rows[0]
    assert ("0.0625" in rows[1]) is (width >= 100)
    assert all(INKS[kind].mark in rows[1] for kind in (Kind.PROPOSE, Kind.FORWARD))
    assert "the row 2-16 stands for 15 rounds and shows their means; --every-round shows each" in " ".join(text.split())
    assert "--every-round" not in shown(turn, width)


def test_only_rounds_that_follow_one_another_are_folded_and_not_two() -> None:
    rounds = [usual_round(number, 20 * number) for number in (1, 2, 3, 4, 8, 9, 10)]
    assert [row.number for row in rows_of(rounds, every_round=False)] == ["1", "2", "3", "4", "8-10"]
    assert [row.number for row in rows_of(rounds, every_round=True)] == ["1", "2", "3", "4", "8", "9", "10"]
    assert rows_of([], every_round=False) == []


def test_kinds_are_told_apart_without_colours_and_without_blocks() -> None:
    assert len({ink.mark for ink in INKS.values()}) == len({ink.letter for ink in INKS.values()}) == len(Kind)
    assert len({ink.colour for ink in INKS.values()}) == len(Kind)
    text = shown(busy_turn(), 100, "ascii")
    assert text.isascii() and "qqqq" in text and "####" in text
    assert "\x1b[31m░" in shown(busy_turn(), 100, force_terminal=True, color_system="standard")


def test_one_round_that_is_far_slower_leaves_the_others_parts_to_be_seen() -> None:
    rounds = [usual_round(number, 20 * number) for number in range(1, 10)]
    rounds.append(a_round(10, 300, 9000, exchange(VERIFY, 300, 9000), outcome=FAILED))
    rows = [line for line in shown(turn(*rounds), 140).splitlines() if re.match(r" +\d+ +\d+\.\d ", line)]
    beside = [row.split(" 12.5 ")[1].split(" 8/0/5")[0] for row in rows[:9]]
    assert all({INKS[Kind.PROPOSE].mark, INKS[Kind.FORWARD].mark} <= set(bar) for bar in beside)
    assert "xx> " in rows[9] and ">" not in rows[0]


def test_a_turn_without_rounds_is_a_headline() -> None:
    assert shown(turn(running=True), 100).startswith("session 0123456789abcdef turn 2")


class Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def test_a_page_stands_alone_and_is_well_formed() -> None:
    text = page("0123456789abcdef", [busy_turn(), turn(), turn(usual_round(1, 0))])
    read = Reader(text)
    assert read.open == []
    assert not {"script", "link", "img", "iframe", "object", "a", "base", "form"} & set(read.tags)
    assert not {"src", "href", "style", "onclick", "onerror"} & {name for name, _ in read.attributes}
    assert "url(" not in text and "@import" not in text and "http:" not in text and "https:" not in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert read.tags.count("details") == 31
    for part in (
        "70 of 100 rounds are left out",
        "round 17 took 84 ms",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "failed: VERIFIER_LOST",
    ):
        assert part in read.text
    assert all(f"--{kind.value}:" in text for kind in Kind)


def test_nothing_that_a_page_shows_is_markup() -> None:
    trace = usual_round(1, 0, error_reason=HOSTILE, outcome=FAILED)
    trace.exchanges[0].address = trace.exchanges[0].error_reason = HOSTILE
    trace.exchanges[1].address = HOSTILE
    trace.exchanges[1].setbacks.append(HOSTILE)
    clean = Reader(page("0" * 16, [turn(usual_round(1, 0), trace_id="x")]))
    read = Reader(page(HOSTILE, [turn(trace, trace_id=HOSTILE)]))
    assert set(read.tags) <= set(clean.tags) and "script" not in read.tags
    assert {name for name, _ in read.attributes} <= {name for name, _ in clean.attributes}
    assert read.text.count(HOSTILE) >= 8


def test_bars_stay_inside_and_have_the_lengths_they_stand_for() -> None:
    message = busy_turn()
    message.rounds[3].verifier_idle.CopyFrom(duration(0.015))  # from before its beginning
    message.rounds[4].exchanges[0].total.CopyFrom(duration(5.0))  # to long after the turn's end
    text = page("s", [message])
    boxes = re.findall(r'<rect class="([a-z ]+)" x="([-\d.]+)%" width="([-\d.]+)%"', text)
    assert len(boxes) == text.count("<rect") > 300
    assert all(float(x) >= 0 and float(x) + float(width) <= 100.01 for _, x, width in boxes)
    row = text.split('aria-label="round 17, recovered"')[2]  # beside the slowest, which it is itself
    queue = re.search(r'"part queue" x="[\d.]+%" width="([\d.]+)%"', row)
    assert queue is not None and float(queue[1]) == pytest.approx(100 * 61 / 84, abs=0.01)


def test_a_file_that_cannot_be_written_is_an_error_and_half_of_one_is_removed(tmp_path: Path) -> None:
    answer = orchestrator_pb2.GetTurnTracesResponse(turns=[busy_turn()])
    file = tmp_path / "turn.html"
    write_html("s", answer, file)
    assert file.read_text(encoding="utf-8") == page("s", answer.turns)
    with pytest.raises(OSError, match="No such file"):
        write_html("s", answer, tmp_path / "missing" / "turn.html")
    with pytest.raises(OSError, match="No space"):
        write_html("s", answer, Path("/dev/full"))
    assert Path("/dev/full").exists()
    with pytest.raises(IsADirectoryError):
        write_html("s", answer, tmp_path)


def test_json_is_the_contracts_own_with_its_zeros() -> None:
    text = message_json(orchestrator_pb2.GetTurnTracesResponse(turns=[turn(a_round(1, 0, 5))]))
    assert '"accepted_token_count": 0' in text and '"total": "0.005s"' in text
    assert "least_margin" not in text, "what is not known is not said"
