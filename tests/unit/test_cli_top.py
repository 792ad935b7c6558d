"""The screen of top: readable at 80 columns and 24 rows with any content; and what a script
gets."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from slipstream.cli import top
from slipstream.cli.bars import BLOCKS, LETTERS, bar, level, sparkline
from slipstream.cli.figures import Figures, Looks
from slipstream.cli.top_screen import Screen, duration, number
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.rpc.wire import duration as duration_message
from slipstream.v1 import generation_pb2, orchestrator_pb2, status_pb2, trace_pb2

ADDRESS = "orchestrator.example:50051"
DRAFT, NGRAM = generation_pb2.Speculation.PROPOSER_DRAFT, generation_pb2.Speculation.PROPOSER_NGRAM


def peer(role: str, reachable: bool = True, **load: int) -> status_pb2.PeerStatus:
    return status_pb2.PeerStatus(role=role, address=f"{role}-1.example:50052", reachable=reachable, load=load or None)


def process(uptime: float, number: int = 0, turn_count: int = 30) -> status_pb2.ProcessStatus:
    """A hundred rounds a second, 16 positions, several peers."""
    rounds = int(uptime * 100)
    kinds = [
        status_pb2.RoundCount(outcome=trace_pb2.ROUND_OUTCOME_RECOVERED, proposer=DRAFT, count=rounds),
        status_pb2.RoundCount(outcome=trace_pb2.ROUND_OUTCOME_BONUS, proposer=NGRAM, count=rounds // 2),
        status_pb2.RoundCount(outcome=trace_pb2.ROUND_OUTCOME_FAILED, count=rounds // 10),
    ]
    return status_pb2.ProcessStatus(
        number=number,
        uptime=duration_message(uptime),
        session_count=1200,
        running_turn_count=turn_count,
        waiting_message_count=7,
        not_drafting_count=3,
        generated_token_count=rounds * 4,
        draft_token_count=rounds * 8,
        accepted_token_count=rounds * 3,
        drafted_per_position_counts=[rounds] * 16,
        accepted_per_position_counts=[rounds // (place + 1) for place in range(16)],
        round_counts=kinds,
        verify=duration_message(0.01 * rounds),
        verify_queue=duration_message(0.002 * rounds),
        verify_network=duration_message(0.001 * rounds),
        draft_wait=duration_message(0.004 * rounds),
        verifier_idle=duration_message(0.006 * rounds),
        rounds=duration_message(0.03 * rounds),
        peers=[
            peer(
                "verifier",
                running_count=5,
                page_count=2048,
                held_page_count=1024,
                cached_page_count=512,
                step_count=rounds,
            ),
            peer("draft", reachable=False),
        ],
        running_turns=[
            status_pb2.RunningTurn(
                session_id=f"{place:016x}",
                turn=place + 1,
                total=duration_message(60 - place),
                generated_token_count=600,
            )
            for place in range(turn_count)
        ],
    )


def figures(process_count: int = 1, turn_count: int = 30) -> Figures:
    looks = Looks()
    for second in range(100, 140):
        processes = [process(second, place, turn_count) for place in range(process_count)]
        shown = looks.take(orchestrator_pb2.GetStatusResponse(processes=processes), float(second))
    return shown


def lines(screen: Screen, width: int, height: int = 40, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=file, width=width, height=height, color_system=None, highlight=False).print(screen)
    file.seek(0)
    return [line.rstrip() for line in file.read().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 132, 200])
@pytest.mark.parametrize("process_count", [1, 3])
def test_nothing_is_wider_than_the_terminal_or_cut(width: int, process_count: int) -> None:
    shown = lines(Screen(ADDRESS, figures(process_count)), width)
    text = "\n".join(shown)
    assert max(map(len, shown)) <= width
    assert "…" not in text and "..." not in text.replace("." * 4, "")
    for part in (
        ADDRESS,
        "sessions",
        "not drafting",
        "tokens/s",
        "acceptance",
        "verify queue",
        "verifier idle",
        "AWAY",
    ):
        assert part in text
    for source in ("draft 100", "n-gram 50", "none 10") if process_count == 1 else ():
        assert source in text
    assert "failed" in text
    assert "cancelled" not in text, "what did not happen and should not is not shown"
    assert "0000000000000000" in text, "a session's id is whole, to be copied"


def test_a_terminal_of_24_rows_has_all_but_most_turns() -> None:
    shown = lines(Screen(ADDRESS, figures()), 80, 24)
    assert len(shown) <= 24
    assert shown[-1] == "and 27 more"
    assert len(lines(Screen(ADDRESS, figures(), most_turns=30), 80, 24)) == 49
    assert lines(Screen(ADDRESS, figures(turn_count=0)), 80)[-1] == "no turn is running"


def test_several_processes_have_a_line_each_and_are_summed() -> None:
    shown = lines(Screen(ADDRESS, figures(3)), 100)
    assert "3 processes" in shown[0] and "sessions 3600" in "".join(shown[:2])
    head = next(place for place, line in enumerate(shown) if line.startswith("process"))
    assert [line.split()[0] for line in shown[head + 1 : head + 4]] == ["0", "1", "2"]
    assert all(line.split()[-1] == "400" for line in shown[head + 1 : head + 4])
    assert next(line for line in shown if line.startswith("tokens/s")).split()[1] == "1200"
    assert not any(line.startswith("process") for line in lines(Screen(ADDRESS, figures(1)), 100))


def test_a_terminal_without_blocks_gets_letters() -> None:
    text = "\n".join(lines(Screen(ADDRESS, figures()), 80, encoding="ascii"))
    assert text.isascii() and "####" in text


def test_the_first_look_has_no_rates_and_does_not_say_that_they_are_0() -> None:
    first = Looks().take(orchestrator_pb2.GetStatusResponse(processes=[process(100)]), 0.0)
    text = "\n".join(lines(Screen(ADDRESS, first), 80))
    assert re.search(r"^tokens/s +-$", text, re.MULTILINE) and "recovered -" in text and "n-gram -" in text
    assert "38% in all" in text and "ms  in all" in text


def test_trouble_stands_on_top_and_the_last_figures_below() -> None:
    error = PeerError(Code.UNAVAILABLE, "UNAVAILABLE", "failed to connect " * 20)
    trouble = top._trouble(error, 75.0)
    text = " ".join(lines(Screen(ADDRESS, figures(), trouble), 80))
    assert "no answer for 1 min 15 s, asking again" in text
    assert len(trouble) < 250
    assert "tokens/s" in text


def test_json_has_no_two_meanings_of_a_name_and_says_nothing_where_there_is_nothing() -> None:
    told: dict[str, Any] = json.loads(json.dumps(top.as_dict(figures(2)), allow_nan=False))
    assert told["tokens_per_second"] == pytest.approx(800.0)
    assert told["acceptance"]["now"] == pytest.approx(3 / 8)
    assert told["rounds_per_second"]["by_proposer"] == pytest.approx({"draft": 200.0, "n-gram": 100.0, "none": 20.0})
    assert told["milliseconds_a_round"]["now"]["verify"] == pytest.approx(10.0 / 1.5)
    assert told["peers"][0]["load"]["held_page_count"] == 1024 and told["peers"][1]["load"] is None
    assert len(told["processes"]) == 2 and len(told["running_turns"]) == 60
    idle = Looks().take(orchestrator_pb2.GetStatusResponse(processes=[status_pb2.ProcessStatus()]), 0.0)
    nothing = json.loads(json.dumps(top.as_dict(idle)))
    assert nothing["acceptance"] == {"now": None, "since_start": None}
    assert nothing["milliseconds_a_round"] == {"now": None, "since_start": None}


def test_a_bar_has_its_width_and_what_is_little_shows() -> None:
    for marks in (BLOCKS, LETTERS):
        for share in (-1.0, 0.0, 0.001, 0.3, 0.999, 1.0, 7.0):
            assert len(bar(share, 10, marks)) == 10
        assert bar(0.0, 10, marks).strip(marks.rest) == ""
        assert bar(0.001, 10, marks).strip(marks.rest) != ""
        assert level(0.001, marks) != level(0.0, marks)
    assert bar(0.55, 10) == "█████▌    "
    assert bar(1.0, 3) == "███"


def test_a_sparkline_has_the_youngest_on_the_right_and_is_blank_before_the_first() -> None:
    assert sparkline([(0.0, 4.0), (10.0, 2.0), (25.0, 0.0)], 60.0, 6) == "   " + " ▄█"
    assert sparkline([(15.0, 8.0), (9.0, 8.0), (0.0, 4.0)], 60.0, 6) == "    ██", "a cell is the greatest of its time"
    assert sparkline([(50.0, 3.0)], 60.0, 6) == "██████", "looks may be further apart than cells"
    assert sparkline([(0.0, 0.0)], 60.0, 6) == " " * 6
    assert sparkline([(99.0, 1.0)], 60.0, 6) == " " * 6


def test_numbers_are_short() -> None:
    values = {
        0.0: "0",
        0.04: "0.0",
        0.4: "0.4",
        9.94: "9.9",
        9.96: "10",
        1234.4: "1234",
        99999.0: "99999",
        123456.0: "123k",
    }
    assert {value: number(value) for value in values} == values
    times = {0.4: "0 s", 59.4: "59 s", 60.0: "1 min 0 s", 7500.0: "2 h 5 min", 273600.0: "3 d 4 h"}
    assert {value: duration(value) for value in times} == times


class Answers:
    """A client whose status() answers, or does not, one after another."""

    def __init__(self, *answers: orchestrator_pb2.GetStatusResponse | BaseException) -> None:
        self._answers = list(answers)

    def status(self, *, timeout: float) -> orchestrator_pb2.GetStatusResponse:
        assert timeout > 1, "peers have a second to tell their load"
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def answer(uptime: float) -> orchestrator_pb2.GetStatusResponse:
    return orchestrator_pb2.GetStatusResponse(processes=[process(uptime)])


def test_an_orchestrator_that_goes_away_is_waited_for_and_ctrl_c_leaves_the_screen() -> None:
    away = PeerError(Code.UNAVAILABLE, "UNAVAILABLE", "connection refused")
    client = Answers(answer(10), answer(11), away, away, answer(1), answer(2), KeyboardInterrupt())
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=40, highlight=False)
    with pytest.raises(KeyboardInterrupt):
        top.watch(client, ADDRESS, 0.001, console)
    written = file.getvalue()
    assert written.count("asking again") == 2
    assert "up 11 s" in written and written.index("asking again") < written.rindex("up 2 s")
    assert written.index("\x1b[?1049h") < written.index("up 11 s") < written.rindex("\x1b[?1049l")


def test_an_orchestrator_that_is_not_there_at_the_beginning_is_an_error() -> None:
    away = PeerError(Code.UNAVAILABLE, "UNAVAILABLE", "connection refused")
    for begin in (top.watch, top.print_once):
        with pytest.raises(PeerError, match="refused"):
            begin(Answers(away), ADDRESS, 0.001, Console(file=io.StringIO()))
