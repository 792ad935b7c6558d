"""AIPerf on the gateway, with its section on speculative decoding.

``make suite-aiperf`` runs it and writes docs/suites/aiperf.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from suites.services import gateway

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "build" / "suites" / "aiperf" / "bin" / "aiperf"
RESULT = ROOT / "docs" / "suites" / "aiperf.json"
QUESTIONS = ROOT / "suites" / "tasks" / "stdlib_answer.jsonl"
TOKENIZER = ROOT / "slipstream" / "embedded" / "target"

_FIGURES = (
    "request_throughput",
    "output_token_throughput",
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "output_sequence_length",
)
_STATISTICS = ("unit", "avg", "p50", "p90", "p99")


def profile(address: str, folder: Path) -> dict[str, Any]:
    """Run AIPerf once, and return what it exports."""
    asked = [json.loads(line)["question"] for line in QUESTIONS.read_text().splitlines()]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps({'text': text})}\n" for text in asked))
    command = [str(PROGRAM), "profile", "--model", "embedded-target"]
    command += ["--url", f"http://{address}", "--endpoint-type", "chat", "--streaming", "--ui", "none"]
    command += ["--tokenizer", str(TOKENIZER), "--input-file", str(prompts), "--custom-dataset-type", "single_turn"]
    command += ["--concurrency", "4", "--request-count", str(len(asked)), "--artifact-dir", str(folder / "found")]
    # If the hub is said to be offline, AIPerf takes no folder for a tokenizer.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run(command, check=True, cwd=folder, env=environment)
    (exported,) = (folder / "found").rglob("profile_export_aiperf.json")
    found = json.loads(exported.read_text())
    assert isinstance(found, dict)
    return found


def main() -> int:
    """Entry point."""
    with gateway() as services, tempfile.TemporaryDirectory() as folder:
        found = profile(services.gateway_address, Path(folder))
    speculation = {name: _shown(value) for name, value in found.items() if "spec_decode" in name}
    figures = {name: _shown(found[name]) for name in _FIGURES if name in found}
    RESULT.write_text(json.dumps({"aiperf": "0.13.0", **figures, "speculation": speculation}, indent=2) + "\n")
    print(f"wrote {RESULT.relative_to(ROOT)}")
    if not speculation:
        print(f"AIPerf has no figures of speculation; it has {', '.join(found)}")
    return 0 if speculation else 1


def _shown(metric: dict[str, Any]) -> dict[str, Any]:
    """Return a few statistics of a metric, and a histogram whole."""
    return {key: metric[key] for key in _STATISTICS if key in metric} if "avg" in metric else metric


if __name__ == "__main__":
    sys.exit(main())
