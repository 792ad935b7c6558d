"""The first answers after a start: three questions in a chat, then thirty others, then the same
three in a new chat.

A first start knows nothing about its pair; a second one has what the first has learnt. Each starts
all three services with the embedded pair as ``slipstream chat --local`` does, and each repetition
has its own questions. Tokens a second are of whole answers: as a chat shows them, and as the user
sees them, from the sending of the question to the arrival of the last token.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.progress import Progress
from rich.table import Table

from benchmarks.chats import questions
from benchmarks.report import Report, add_output
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings

_FIRST = 3
_OTHERS = 30


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of some answers."""

    shown: float
    """Tokens a second by the orchestrator's times."""
    had: float
    """Tokens a second by the client's times."""

    def of(self, other: Speed) -> Speed:
        """Return this speed as a share of another's."""
        return Speed(self.shown / other.shown, self.had / other.had)


def chat(client: Client, texts: Sequence[str], settings: Settings) -> Speed:
    """Run one chat, and return its answers."""
    token_count, shown, had = 0, 0.0, 0.0
    with client.chat(settings=settings) as session:
        for text in texts:
            asked = time.perf_counter()
            result = session.send(text).wait()
            had += time.perf_counter() - asked
            shown += result.total_time
            token_count += result.generated_token_count
        session.delete()
    return Speed(token_count / shown, token_count / had)


def start(directory: str, texts: Sequence[str], settings: Settings, pause: float) -> tuple[Speed, Speed]:
    """Measure the first answers after a start that keeps what it learns in ``directory``, and the
    same answers after others."""
    pair = PairSettings(orchestrator_flags=("--learnt-directory", directory))
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        time.sleep(pause)
        first = chat(client, texts[:_FIRST], settings)
        for at in range(_FIRST, len(texts), _FIRST):
            chat(client, texts[at : at + _FIRST], settings)
        time.sleep(pause)  # a machine that has just idled is slower for a while
        return first, chat(client, texts[:_FIRST], settings)


def measure(options: argparse.Namespace, progress: Progress) -> Iterator[tuple[str, Speed, Speed]]:
    """Yield each start's name, its first answers' speed, and the later ones' speed."""
    task = progress.add_task("starts", total=options.repetitions * 2)
    for number in range(options.repetitions):
        symbols = questions(_FIRST + _OTHERS, random.Random(number).randrange(2**32))
        settings = Settings(temperature=options.temperature, seed=number, max_token_count=options.max_tokens)
        with tempfile.TemporaryDirectory(prefix="slipstream-learnt-") as directory:
            for which in ("first", "second"):
                yield which, *start(directory, symbols, settings, options.pause)
                progress.advance(task)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_start", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5, help="first and second starts")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens an answer may have")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the answers (default 0)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds of rest before each time (default 1)")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("warm_start", __doc__ or "", options.output)
    with Progress(console=report.console) as progress:
        starts = list(measure(options, progress))
    table = Table(title="first answers after a start, tokens/s; ratios: medians over starts, least and most")
    for column in ("start", "first three", "the same later", "x later, as shown", "x later, as had"):
        table.add_column(column, justify="left" if column == "start" else "right")
    for which in ("first", "second"):
        ratios = [first.of(later) for name, first, later in starts if name == which]
        table.add_row(
            which,
            f"{statistics.median(first.had for name, first, _ in starts if name == which):.0f}",
            f"{statistics.median(later.had for name, _, later in starts if name == which):.0f}",
            *(
                f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
                for each in ([ratio.shown for ratio in ratios], [ratio.had for ratio in ratios])
            ),
        )
    report.show(table)


if __name__ == "__main__":
    main()
