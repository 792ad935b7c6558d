"""Guidellm on the gateway: four streams of synthetic prompts.

``make suite-guidellm`` runs it and writes docs/suites/guidellm.json.
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
PROGRAM = ROOT / "build" / "suites" / "guidellm" / "bin" / "guidellm"
RESULT = ROOT / "docs" / "suites" / "guidellm.json"
TOKENIZER = ROOT / "slipstream" / "embedded" / "target"

_COUNT = 60
_FIGURES = (
    "requests_per_second",
    "output_tokens_per_second",
    "time_to_first_token_ms",
    "inter_token_latency_ms",
    "time_per_output_token_ms",
    "request_latency",
)


def measure(address: str, folder: Path) -> dict[str, Any]:
    """Run guidellm once, and return its only benchmark."""
    backend = f"kind=openai_http,target=http://{address},model=embedded-target,request_format=/v1/chat/completions"
    command = [str(PROGRAM), "run", "--backend", backend, "--profile", "kind=concurrent,streams=4"]
    command += ["--constraint", f"kind=max_requests,count={_COUNT}", "--tokenizer", f"kind=hf_auto,model={TOKENIZER}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"]
    command += ["--output", "kind=json,path=found.json", "--disable-console-interactive"]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    (benchmark,) = json.loads((folder / "found.json").read_text())["benchmarks"]
    assert isinstance(benchmark, dict)
    return benchmark


def main() -> int:
    """Entry point."""
    with gateway() as services, tempfile.TemporaryDirectory() as folder:
        found = measure(services.gateway_address, Path(folder))
    counts = {name: len(found["requests"][name]) for name in ("successful", "errored", "incomplete")}
    figures = {name: _figure(found["metrics"][name]) for name in _FIGURES}
    RESULT.write_text(json.dumps({"guidellm": "0.8.1", "requests": counts, **figures}, indent=2) + "\n")
    print(f"wrote {RESULT.relative_to(ROOT)}: {counts}")
    return 0 if counts["successful"] == _COUNT else 1


def _figure(metric: dict[str, Any]) -> dict[str, Any]:
    """Return a few statistics of the answers that came whole."""
    whole = metric["successful"]
    return {"mean": whole["mean"], **{rank: whole["percentiles"][rank] for rank in ("p50", "p90", "p99")}}


if __name__ == "__main__":
    sys.exit(main())
