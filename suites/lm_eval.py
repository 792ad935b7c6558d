"""Run two local tasks with speculation off, on, and with a draft that dies in between, and compare.

``make suite-lm-eval`` does. The scores, and every answer, must be equal to the last digit; the
results are written to docs/suites/lm-eval.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.cli.local import LocalServices
from slipstream.client import Client
from suites.services import draft_killed, gateway

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / "build" / "suites" / "lm-eval"
RESULT = ROOT / "docs" / "suites" / "lm-eval.json"
TOKENIZER = ROOT / "slipstream" / "embedded" / "target"
MODEL = "embedded-target"

RUNS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "completions, greedy": ("local-completions", "stdlib_choice,stdlib_answer", ()),
    "completions, temperature 0.8": (
        "local-completions",
        "stdlib_answer",
        ("--gen_kwargs", "do_sample=True,temperature=0.8"),
    ),
    "chat completions, greedy": ("local-chat-completions", "stdlib_answer_chat", ("--apply_chat_template",)),
}
"""Model class of the harness, tasks and further flags of each run."""

_KILL_AFTER_TOKENS = 600
"""Tokens after which the draft is killed, of about 3,000."""


def evaluate(address: str, model: str, tasks: str, flags: tuple[str, ...]) -> dict[str, Any]:
    """Run the harness once. Return the scores of each task, and a hash of all its answers."""
    path = "chat/completions" if "chat" in model else "completions"
    arguments = {
        "model": MODEL,
        "base_url": f"http://{address}/v1/{path}",
        "tokenizer": str(TOKENIZER),
        "num_concurrent": "4",
        "max_retries": "1",
    }
    if "chat" in model:
        del arguments["tokenizer"]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(ENVIRONMENT / "bin" / "lm_eval"), "run", "--model", model, "--tasks", tasks]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
        command += ["--include_path", "suites/tasks", "--output_path", folder, "--log_samples", *flags]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": f"{folder}/cache",
            "OPENAI_API_KEY": "-",
        }
        subprocess.run(command, check=True, cwd=ROOT, env=environment)
        return {task: _result(Path(folder), task) for task in tasks.split(",")}


def _result(folder: Path, task: str) -> dict[str, Any]:
    (results,) = folder.rglob("results_*.json")
    scores = json.loads(results.read_text())["results"][task]
    (samples,) = folder.rglob(f"samples_{task}_*.jsonl")
    found = [json.loads(line) for line in samples.read_text().split("\n") if line]
    lines = sorted(found, key=lambda line: int(line["doc_id"]))
    answers = json.dumps([line["resps"] for line in lines]).encode()
    figures = {name.removesuffix(",none"): value for name, value in scores.items() if name.endswith(",none")}
    return {"count": len(lines), **figures, "answers_sha256": hashlib.sha256(answers).hexdigest()}


def all_runs(services: LocalServices) -> dict[str, Any]:
    """Return the results of every run."""
    return {name: evaluate(services.gateway_address, *run) for name, run in RUNS.items()}


def _counts(services: LocalServices) -> dict[str, int]:
    with Client(services.orchestrator_address) as client:
        processes = client.status().processes
    names = ("generated_token_count", "draft_token_count", "accepted_token_count")
    return {name: sum(getattr(process, name) for process in processes) for name in names}


def main() -> int:
    """Entry point."""
    found: dict[str, Any] = {}
    with gateway("", "--draft-length", "0") as services:
        found["off"] = {"runs": all_runs(services), "counts": _counts(services)}
    with gateway() as services:
        found["on"] = {"runs": all_runs(services), "counts": _counts(services)}
    with gateway() as services, draft_killed(services, _KILL_AFTER_TOKENS) as killed:
        found["draft killed"] = {"runs": all_runs(services), "counts": _counts(services)}
        assert killed.is_set(), "the draft lived on: there were too few tokens"
    first = found["off"]["runs"]
    equal = all(one["runs"] == first for one in found.values())
    suite = {"lm_eval": "0.4.13", "equal": equal}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({**suite, "conditions": found}, indent=1) + "\n")
    print(f"{RESULT.relative_to(ROOT)} is written; the scores are {'equal' if equal else 'NOT equal'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
