"""GGUF files in both of Slipstream's roles, in three processes over gRPC, beside llama.cpp's own
server with the same files.

``--engine`` selects llama.cpp, or the compiled forwards, which take bfloat16 and eight bits. In one
run every system answers the same questions several times in turn. The table gives medians, and
ratios within each repetition: to llama.cpp's plain decoding, and to its fastest speculative run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks import llamacpp_models
from benchmarks.embedded_pair import measure, median_ratio, prompts, round_table
from benchmarks.report import Picture, Report, add_output
from benchmarks.systems import MODES, Limits, System, llamacpp_systems, slipstream_systems
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client
from slipstream.hosting.tokenizer_files import embedded_directory
from training.dialogues import HELD_OUT_PHRASINGS, QUESTION_PHRASINGS


def table_of(systems: Sequence[System]) -> Table:
    """Return tokens/s and ratios for each temperature."""
    table = Table(title="tokens/s: medians; ratios: medians within one run")
    for column in ("T", "system", "tokens/s", "x llama.cpp", "x llama.cpp's best speculative", "acceptance"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for temperature in sorted({system.temperature for system in systems}):
        group = [system for system in systems if system.temperature == temperature]
        plain, *others = group
        speculative = [system for system in others if system.name.startswith(plain.name)]
        best = max(speculative, key=lambda system: statistics.median(system.rates)) if speculative else None
        for system in group:
            table.add_row(
                f"{temperature:g}",
                system.name,
                f"{statistics.median(system.rates):.0f}",
                f"{median_ratio(system, plain):.2f}",
                "" if best is None else f"{median_ratio(system, best):.2f}",
                "" if system.acceptance is None else f"{system.acceptance:.3f}",
            )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gguf_pair", description=__doc__)
    parser.add_argument("--prompts", type=int, default=8, help="questions in each repetition")
    parser.add_argument("--repetitions", type=int, default=5, help="counted repetitions; one more warms up")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens an answer may have")
    parser.add_argument("--streams", type=int, default=1, help="questions at a time")
    parser.add_argument("--target", type=Path, default=embedded_directory("target"), help="target model's directory")
    parser.add_argument("--draft", type=Path, default=embedded_directory("draft"), help="draft model's directory")
    parser.add_argument("--target-weights", default="BF16", help="BF16, F32 or Q8_0")
    parser.add_argument("--draft-weights", default="BF16", help="BF16, F32, Q8_0 or Q4_0")
    parser.add_argument("--modes", nargs="*", default=["adaptive"], choices=list(MODES), help="of Slipstream")
    parser.add_argument("--draft-lengths", type=int, nargs="*", default=[8, 16], help="fixed lengths to measure too")
    parser.add_argument(
        "--llamacpp-lengths", type=int, nargs="*", default=[8, 16], help="most draft tokens of llama.cpp's"
    )
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--held-out", action="store_true", help="ask in phrasings that training never saw")
    parser.add_argument("--models", type=Path, default=Path("build/gguf"), help="where the GGUF files are kept")
    parser.add_argument("--server", type=Path, help="a llama-server built for this machine; without, the wheel's")
    parser.add_argument("--engine", default="llamacpp", help="of the services: llamacpp, compiled or auto")
    parser.add_argument("--name", default="gguf_pair", help="of the files in the output directory")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report(options.name, __doc__ or "", options.output)
    target, draft = llamacpp_models.converted(
        options.models, options.target, options.draft, options.target_weights, options.draft_weights
    )
    report.console.print(
        f"target in {options.target_weights}, draft in {options.draft_weights}, {options.prompts} prompts, "
        f"{options.streams} at a time, {options.repetitions} repetitions"
    )
    questions = prompts(options.prompts, HELD_OUT_PHRASINGS if options.held_out else QUESTION_PHRASINGS)
    systems: list[System] = []
    flags = ["--engine", options.engine]
    pair = PairSettings(target=str(target), draft=str(draft), target_flags=flags, draft_flags=flags)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        for temperature in options.temperatures:
            limits = Limits(temperature, options.max_tokens, options.streams)
            systems += llamacpp_systems(limits, target, draft, options.llamacpp_lengths, options.server)
            systems += slipstream_systems(client, limits, options.modes, options.draft_lengths)
        measure(systems, questions, options.repetitions, report)
    report.show(table_of(systems), Picture("system", ("tokens/s",), by="T", bars=True))
    report.show(round_table(systems))


if __name__ == "__main__":
    main()
