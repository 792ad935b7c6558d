"""Prove that speculation, batching and failures change nothing.

Plain decoding in one fresh process answers each prompt: that is the reference. The whole served
system answers it again, on the embedded pair or on one of random weights: orchestrator, verifiers,
draft, real processes and sockets, under a random mix of disturbances. Token ids and the bits of
their log-probabilities must be equal. Exits with 1 if any differ or a disturbance never struck.

Kill it at any time: the same command goes on after the last finished cell.

  python -m proving --prompts 40                      a few minutes, every disturbance
  python -m proving --prompts 10000 --report docs/history/proof.md
  python -m proving --list                            what is disturbed
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from rich.console import Console

from proving.disturbances import ALL, OF_RANKS
from proving.pairs import BACKENDS, COMPILED
from proving.proof import Proof, Run
from proving.report import Circumstances, complaints, markdown, sentence, table
from proving.results import commit_of_tree
from proving.schedule import LEAST_PROMPTS
from slipstream.errors import SlipstreamError

_WIDTH = 160
"""Columns of output that does not go to a terminal."""


def main(arguments: list[str] | None = None) -> int:
    """Run the proof. Returns 0 if it holds."""
    options = _parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    if options.list:
        for disturbance in (*ALL, *OF_RANKS):
            console.print(f"[bold]{disturbance.name}[/]: {(disturbance.__doc__ or '').splitlines()[0]}")
        return 0
    if options.prompts < LEAST_PROMPTS:
        sys.exit(f"--prompts must be at least {LEAST_PROMPTS}, so that every disturbance finds some")
    commit = options.commit or commit_of_tree()
    name = f"{commit}-seed{options.seed}-prompts{options.prompts}-tokens{options.tokens}"
    directory = options.directory / (name if options.backend == COMPILED else f"{name}-{options.backend}")
    console.print(f"results in {directory}")
    started = time.monotonic()
    try:
        verdict = Proof(Run(options.prompts, options.tokens, options.seed, directory, options.backend), console).run()
    except SlipstreamError as error:
        sys.exit(f"the proof could not be run: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on after the last finished cell")
    console.print(table(verdict))
    for complaint in complaints(verdict):
        console.print(complaint, style="red")
    console.print(sentence(verdict), style="bold green" if verdict.proven else "bold red")
    if options.report:
        command = shlex.join(["python", "-m", "proving", *(arguments if arguments is not None else sys.argv[1:])])
        seconds = time.monotonic() - started
        circumstances = Circumstances(command, commit, options.seed, options.prompts, options.tokens, seconds)
        options.report.write_text(markdown(verdict, circumstances))
    return 0 if verdict.proven else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=40, help="how many prompts (default 40)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate after each (default 128)")
    parser.add_argument("--seed", type=int, default=0, help="decides prompts, their seeds and the schedule (default 0)")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default=COMPILED,
        help="what computes target and draft (default compiled); llamacpp by GGUF files of them, the draft in four bits; "
        "gguf by compiled code and such files, in eight bits and in bfloat16; cuda on a GPU; ranks by two processes that share "
        "the target; two-vocabularies with a draft that has a vocabulary of its own",
    )
    parser.add_argument("--directory", type=Path, default=Path("build/prove"), help="where results are kept")
    parser.add_argument("--commit", help="what to file the results under instead of the tree's commit and changes")
    parser.add_argument("--report", type=Path, help="write the table and its circumstances there as markdown")
    parser.add_argument("--list", action="store_true", help="list the disturbances and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
