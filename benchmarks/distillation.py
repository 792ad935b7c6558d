"""Distil the embedded draft for a domain that it does not know, and measure it before and after.

The prompts are JSON requests of a program that asks about some of the target's names
(`training.domain_prompts`), and one question of a person about every name, so that the draft does
not forget what it knows. The target answers them through ``slipstream distill collect``, and
``slipstream distill`` trains. Real services measure acceptance on prompts that were not trained on:
requests of the program, requests about names for which it never asks, and questions in phrasings of
their own.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.report import Report, add_output
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.interpreter import module_command
from training import corpus
from training.dialogues import HELD_OUT_PHRASINGS, QUESTION_PHRASINGS
from training.domain_prompts import questions, requests, write
from training.evaluate import acceptance, acceptance_by_position

TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts to train on and to measure with. No prompt is in both."""

    training: Sequence[str]
    held_out: Mapping[str, Sequence[str]]
    """By domain."""


def drawn(name_count: int, request_count: int, held_count: int, seed: int) -> Prompts:
    """Draw prompts. The program asks about ``name_count`` names."""
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    shuffled = random.Random(seed).sample(entries, len(entries))
    own, others = (requests(names, seed) for names in (shuffled[:name_count], shuffled[name_count:]))
    held = {
        "requests": own[request_count : request_count + held_count],
        "about other names": others[:held_count],
        "questions": questions(shuffled[:held_count], HELD_OUT_PHRASINGS, seed),
    }
    return Prompts([*own[:request_count], *questions(entries, QUESTION_PHRASINGS, seed)], held)


def asked(draft: str, prompts: Sequence[str], temperature: float, draft_length: int) -> list[Result]:
    """Return the results of prompts, each a session's first."""
    settings = Settings(temperature=temperature, seed=1, draft_length=draft_length)
    with LocalServices(PairSettings(draft=draft)) as local, Client(local.orchestrator_address) as client:
        return [_answer(client, prompt, settings) for prompt in prompts]


def _answer(client: Client, prompt: str, settings: Settings) -> Result:
    with client.chat(settings=settings) as session:
        return session.send(prompt).wait()


def _run(*arguments: str) -> float:
    """Run a command of ``slipstream``. Returns the seconds."""
    began = time.monotonic()
    subprocess.run(module_command("slipstream.cli", *arguments), check=True, stdout=sys.stderr)
    return time.monotonic() - began


def distilled(folder: Path, prompts: Sequence[str], options: argparse.Namespace) -> tuple[str, dict[str, float]]:
    """Collect and train. Returns the new draft and the seconds of both."""
    write(folder / "prompts.jsonl", random.Random(options.seed).sample(prompts, len(prompts)))
    data, out = str(folder / "data"), str(folder / "draft")
    sampling = ["--temperature", str(options.collect_temperature)]
    collecting = ["--prompts", str(folder / "prompts.jsonl"), "--target", "embedded", "--out", data]
    training = ["--target", "embedded", "--draft", "embedded", "--data", data, "--out", out]
    given = [f"--{name}={value}" for name, value in _TRAINING.items()] + options.train
    seconds = {
        "collect": _run("distill", "collect", *collecting, *sampling, "--concurrency", "16"),
        "distill": _run("distill", *training, *given),
    }
    return out, seconds


_TRAINING = {"optimizer": "adamw", "learning-rate": 3e-4, "epochs": 16, "temperature": 0.8}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, default=200, help="names about which the program asks")
    parser.add_argument("--requests", type=int, default=2000, help="requests to train on, of 12 about each name")
    parser.add_argument("--held-out", type=int, default=100, help="prompts of each domain to measure with")
    parser.add_argument("--draft-length", type=int, default=5, help="draft tokens a round while measuring")
    parser.add_argument("--collect-temperature", type=float, default=0.0, help="of the answers to train on")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is drawn")
    parser.add_argument("--train", nargs="*", default=[], help="more options of slipstream distill, as --train=--kl=1")
    add_output(parser)
    options = parser.parse_args()
    assert __doc__ is not None
    report = Report("distillation", __doc__, options.output)
    prompts = drawn(options.names, options.requests, options.held_out, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        draft, seconds = distilled(Path(folder), prompts.training, options)
        table = Table(
            title=f"acceptance on {options.held_out} held-out prompts of each domain; collecting took "
            f"{seconds['collect']:.0f} s, training {seconds['distill']:.0f} s"
        )
        for column in ("domain", "temperature", "draft", "acceptance", "by position", "equal texts"):
            table.add_column(column)
        for domain, held in prompts.held_out.items():
            for temperature in TEMPERATURES:
                before, after = (asked(name, held, temperature, options.draft_length) for name in ("embedded", draft))
                equal = sum(one.text == other.text for one, other in zip(before, after, strict=True))
                for name, results in (("embedded", before), ("distilled", after)):
                    shares = " ".join(f"{share:.2f}" for share in acceptance_by_position(results))
                    table.add_row(
                        domain,
                        f"{temperature:g}",
                        name,
                        f"{acceptance(results):.3f}",
                        shares,
                        f"{equal} of {len(held)}",
                    )
    report.show(table)


if __name__ == "__main__":
    main()
