"""A pair on a GPU: plain and speculative decoding, one stream and many, beside what the memory's
bandwidth allows.

To decode a token plainly every weight of the target is read once, for however many streams. So no
more than bandwidth over bytes of weights times streams can come of it: the column "x bound" says
how near each mode gets, and above 1 what only speculation gives. The models are those of
`benchmarks.heavy_target`, which say what the embedded pair says and cost what real ones do:

  python -m benchmarks.wide_vocabulary 128256 build/wide-pair
  python -m benchmarks.heavy_target llama-8b build/8b --source build/wide-pair/target --device cuda
  python -m benchmarks.heavy_target llama-1b build/1b --source build/wide-pair/draft --device cuda
  python -m benchmarks.accelerator --target build/8b --draft build/1b
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.table import Table

from benchmarks.embedded_pair import measure, prompts
from benchmarks.report import Picture, Report, add_output
from benchmarks.systems import MODES, ROUND_PARTS, Limits, System, slipstream_systems, transformers_systems
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client
from training.dialogues import HELD_OUT_PHRASINGS

_COPIED_BYTES = 2**32
_COPIES = 20


def bandwidth(device: str) -> float:
    """Return the bytes/s of a large copy on the device, read and written together: the median of
    several."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rates = []
    for _ in range(_COPIES):
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(device)
        rates.append(2 * _COPIED_BYTES / (time.perf_counter() - started))
    del source, target
    torch.cuda.empty_cache()  # the services want it
    return statistics.median(rates)


def weight_bytes(model: Path) -> int:
    """Return the bytes of a directory's safetensors files."""
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def rows(systems: Sequence[System], streams: int, bound: float) -> list[list[str]]:
    """Return one table's rows: what each system reached with this number of streams."""
    off = next(system for system in systems if system.name == "Slipstream off")
    found = []
    for system in systems:
        rate = statistics.median(system.rates)
        parts = system.round_milliseconds
        found.append(
            [
                f"{system.temperature:g}",
                str(streams),
                system.name.removeprefix("Slipstream "),
                f"{rate:.0f}",
                f"{statistics.median(a / b for a, b in zip(system.rates, off.rates, strict=True)):.2f}",
                f"{rate / bound:.2f}",
                "" if system.acceptance is None else f"{system.acceptance:.3f}",
                *(f"{part:.2f}" for part in parts),
                *[""] * (len(ROUND_PARTS) - len(parts)),
            ]
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", type=Path, required=True, help="target model's directory")
    parser.add_argument("--draft", type=Path, required=True, help="draft model's directory")
    parser.add_argument("--device", default="cuda", help="torch device of both")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="questions at a time")
    parser.add_argument("--answers", type=int, default=2, help="of each stream in a repetition")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens an answer may have")
    parser.add_argument("--repetitions", type=int, default=5, help="counted repetitions; one more warms up")
    parser.add_argument("--modes", nargs="*", default=["off", "adaptive"], choices=list(MODES))
    parser.add_argument("--draft-lengths", type=int, nargs="*", default=[4, 8], help="fixed lengths to measure too")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--kv-memory-mib", type=int, default=8192, help="of each service")
    parser.add_argument("--transformers", action="store_true", help="beside transformers, where there is one stream")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("accelerator", __doc__ or "", options.output)
    rate, size = bandwidth(options.device), weight_bytes(options.target)
    report.console.print(
        f"{torch.cuda.get_device_name(options.device)}, torch {torch.__version__}; a copy moves {rate / 1e12:.2f} TB/s; "
        f"{size / 1e9:.1f} GB of weights: {rate / size:.0f} tokens/s a stream at most without speculation"
    )
    table = Table(title="tokens/s: medians; x off: medians within a repetition; ms a round: means")
    columns = ("T", "streams", "system", "tokens/s", "x off", "x bound", "acceptance", *ROUND_PARTS)
    for column in columns:
        table.add_column(column, justify="left" if column == "system" else "right")
    flags = ["--kv-memory-mib", str(options.kv_memory_mib)]
    pair = PairSettings(
        target=str(options.target),
        draft=str(options.draft),
        device=options.device,
        target_flags=flags,
        draft_flags=flags,
    )
    with LocalServices(pair, report=report.console.print) as local, Client(local.orchestrator_address) as client:
        for service in local.services.values():
            report.console.print(f"{service.name}: {service.log_tail(4)}")
        for temperature in options.temperatures:
            for streams in options.streams:
                limits = Limits(temperature, options.max_tokens, streams)
                systems = slipstream_systems(client, limits, options.modes, options.draft_lengths)
                if options.transformers and streams == 1:
                    systems += transformers_systems(limits, options.target, options.draft, "bfloat16", options.device)[
                        :2
                    ]
                questions = prompts(streams * options.answers, HELD_OUT_PHRASINGS)
                measure(systems, questions, options.repetitions, report)
                for row in rows(systems, streams, streams * rate / size):
                    table.add_row(*row)
            table.add_section()
    report.show(table, Picture("streams", ("tokens/s",), by="system", bars=True))


if __name__ == "__main__":
    main()
