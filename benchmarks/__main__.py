"""Runs all benchmarks, one after another, and keeps their tables and pictures in a directory. It
takes an hour, or a few minutes with ``--quick``.

Each benchmark is a separate process, so that none is affected by what another has left behind.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a benchmark needs: the module that builds it, its argument, and its
    directory."""

    module: str
    argument: str
    directory: str


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark: what it shows, its module, its arguments for a full and a quick run, and the
    model that it needs."""

    text: str
    module: str
    arguments: str
    quick: str
    model: Model | None = None


CASES: dict[str, Case] = {
    "embedded": Case(
        "the embedded pair beside transformers and onnxruntime-genai",
        "embedded_pair",
        "--prompts 12 --modes adaptive draft --draft-lengths 8 32 64 --onnxruntime build/onnx",
        "--prompts 4 --modes adaptive --draft-lengths 64 --temperatures 0 --onnxruntime build/onnx",
    ),
    "streams": Case(
        "the same with eight questions at a time",
        "embedded_pair",
        "--name streams --streams 8 --prompts 16 --modes adaptive draft --draft-lengths 8 32 --onnxruntime build/onnx",
        "--name streams --streams 8 --prompts 8 --modes adaptive --draft-lengths --temperatures 0 --repetitions 2",
    ),
    "held-out": Case(
        "the same in phrasings that training never saw, beside llama.cpp too",
        "embedded_pair",
        "--name held-out --held-out --prompts 8 --modes adaptive --draft-lengths 4 8 16 32 --onnxruntime build/onnx"
        " --llamacpp build/gguf --llamacpp-lengths 8 16",
        "--name held-out --held-out --prompts 4 --modes adaptive --draft-lengths 8 --temperatures 0 --repetitions 2"
        " --llamacpp build/gguf --llamacpp-lengths 16",
    ),
    **{
        f"realistic-{share}": Case(
            f"the same with a draft that is right at {share} of the tokens",
            "embedded_pair",
            f"--name realistic-{share} --draft build/draft-{share} --held-out --prompts 8"
            " --modes adaptive --draft-lengths 4 8 16 --temperatures 0 0.8 1.0"
            " --onnxruntime build/onnx --llamacpp build/gguf --llamacpp-lengths 4 8",
            f"--name realistic-{share} --draft build/draft-{share} --held-out --prompts 4 --modes adaptive"
            " --draft-lengths 8 --temperatures 0 --repetitions 2 --llamacpp build/gguf --llamacpp-lengths 4",
            Model("weakened_draft", share, f"build/draft-{share}"),
        )
        for share in ("0.8", "0.7", "0.6")
    },
    "chats": Case(
        "chats of sixteen turns",
        "chats",
        "",
        "--turns 6 --repetitions 2 --learning 1 --temperatures 0",
    ),
    "repeated": Case(
        "answers that can be copied from the chat",
        "embedded_pair",
        "--name repeated --repeated --prompts 10 --modes n-gram adaptive --draft-lengths",
        "--name repeated --repeated --prompts 4 --modes n-gram --draft-lengths",
    ),
    "heavy": Case(
        "a target of 488 M parameters that answers as the embedded one does",
        "embedded_pair",
        "--name heavy --target build/heavy-500m --prompts 2 --modes adaptive --draft-lengths 8",
        "--name heavy --target build/heavy-500m --prompts 1 --modes adaptive --draft-lengths --temperatures 0 --repetitions 2",
        Model("heavy_target", "500m", "build/heavy-500m"),
    ),
    "gguf": Case(
        "llama.cpp in both roles, beside llama.cpp's own server",
        "gguf_pair",
        "--held-out",
        "--prompts 2 --repetitions 2 --temperatures 0 --draft-lengths 8 --llamacpp-lengths 8",
    ),
    "real": Case(
        "SmolLM2-135M beside llama.cpp on the same file, quiet and beside a busy process for each processor",
        "real_model",
        "",
        "--prompts 2 --repetitions 2 --max-tokens 48 --machines quiet",
    ),
    "wide-vocabulary": Case(
        "the embedded pair with 128,256 rows in its heads, of the same function",
        "embedded_pair",
        "--name wide-vocabulary --target build/wide-pair/target --draft build/wide-pair/draft --prompts 8 --modes adaptive"
        " --draft-lengths 8 16",
        "--name wide-vocabulary --target build/wide-pair/target --draft build/wide-pair/draft --prompts 4 --modes adaptive"
        " --draft-lengths --repetitions 2",
        Model("wide_vocabulary", "128256", "build/wide-pair"),
    ),
    "sampling": Case(
        "choosing tokens at small and large vocabularies, beside torch and transformers",
        "sampling",
        "",
        "--rows 1 8 --repetitions 5",
    ),
    "exchange": Case(
        "an item out and its result back, with a model that takes next to no time",
        "exchange",
        "",
        "--count 300 --repetitions 2",
    ),
    "hint-simulation": Case(
        "hints and plain decoding, simulated; each of their numbers doubled and halved",
        "hint_simulation",
        "",
        "--tokens 200 --seeds 1 --varied-seeds 0",
    ),
    "predicted-edits": Case(
        "files that are rewritten with edits, the file before as the prediction, simulated",
        "predicted_edits",
        "",
        "--files 4 --tokens 300",
    ),
    "network": Case(
        "a big node and a link, simulated",
        "network",
        "--tokens 400 --round-trips 0 10 80",
        "--tokens 60 --acceptance 0.8 --round-trips 0 10 80 --repetitions 2",
    ),
    "scale": Case(
        "one orchestrator under many sessions",
        "scale",
        "--tokens 150",
        "--sessions 1 64 --contexts 1000 32000 --tokens 60 --repetitions 2",
    ),
    "observing": Case(
        "what metrics and traces cost",
        "observing",
        "--tokens 200 --turns 2",
        "--sessions 16 --tokens 60 --turns 1 --repetitions 2",
    ),
    "load": Case(
        "many chats: plain, fixed and adaptive",
        "load",
        "--acceptance 0 0.8 --sessions 1 8 32 --tokens 250",
        "--acceptance 0.8 --sessions 1 8 --tokens 60 --repetitions 2",
    ),
    "over-http": Case(
        "answers over HTTP beside the same over gRPC",
        "over_http",
        "",
        "--requests 64 --repetitions 2",
    ),
    "readers": Case(
        "chats beside a client that never reads",
        "frozen_reader",
        "",
        "--seconds 10 --reading 10",
    ),
    "overload": Case(
        "more turns than there is time for",
        "overload",
        "--seconds 120",
        "--loads 4 --seconds 10 --settling 5 --concurrency 1 16",
    ),
    "autoscaling": Case(
        "what an autoscaler of verifiers sees",
        "autoscaling",
        "",
        "--clients 4 64 --seconds 8 --settling 4",
    ),
    "collecting": Case("what collecting costs a verifier", "collecting", "", "--repetitions 3"),
    "arrivals": Case(
        "chats that arrive at a fixed rate",
        "load",
        "--name arrivals --acceptance 0.8 --sessions 24 --rate 2 --tokens 60",
        "--name arrivals --acceptance 0.8 --sessions 8 --rate 2 --tokens 40 --repetitions 2",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:>12}  {case.text}" for name, case in CASES.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these benchmarks")
    parser.add_argument("--quick", action="store_true", help="less of everything: to see that it runs")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), help="where to keep the results")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]}; there are {', '.join(CASES)}")
    names = options.names or list(CASES)
    for number, name in enumerate(names, 1):
        case = CASES[name]
        print(f"\n[{number}/{len(names)}] {name}: {case.text}", flush=True)
        if case.model is not None and not Path(case.model.directory).exists():
            builder = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{case.model.module}"]
            subprocess.run([*builder, case.model.argument, case.model.directory], check=True)
        chosen = case.quick if options.quick else case.arguments
        command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{case.module}", *chosen.split()]
        if subprocess.run([*command, "--output", str(options.output)]).returncode:
            sys.exit(f"{name} failed; the results so far are in {options.output}")
    print(f"\ntables and pictures are in {options.output}")


if __name__ == "__main__":
    main()
