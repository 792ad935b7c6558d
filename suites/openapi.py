"""Schemathesis against the gateway's OpenAPI document, on real services with the embedded target.

``make suite-schemathesis`` runs it and writes docs/suites/schemathesis.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.cli.local import LocalServices, PairSettings, free_address

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "suites" / "schemathesis.json"
PROGRAM = ROOT / ".venv" / "schemathesis" / "bin" / "schemathesis"

_LEFT_OUT = {
    "positive_data_acceptance": "no schema can tell which token ids, names and sessions there are, or which fields "
    "exclude each other"
}
"""Checks that are left out, with the reason."""


def main(arguments: Sequence[str]) -> int:
    """Run Schemathesis, write its result, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m suites.openapi")
    parser.add_argument("--seconds", type=int, default=60, help="time for the whole run")
    parser.add_argument("--seed", type=int, default=1, help="seed of the generated requests")
    asked = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalServices(PairSettings(draft=""), gateway=free_address()) as local,
    ):
        status = _run(local.gateway_address, Path(folder), asked)
        (report,) = Path(folder).glob("*.json")
        result = _result(json.loads(report.read_text()))
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {RESULT.relative_to(ROOT)}")
    return status


def _run(address: str, folder: Path, asked: argparse.Namespace) -> int:
    command = [str(PROGRAM), "run", f"http://{address}/openapi.json", "--wait-for-schema", "60"]
    command += ["--max-time", str(asked.seconds), "--seed", str(asked.seed), "--continue-on-failure"]
    command += ["--exclude-checks", ",".join(_LEFT_OUT), "--report", "json", "--report-dir", str(folder)]
    hooks = {"PYTHONPATH": str(ROOT / "suites"), "SCHEMATHESIS_HOOKS": "schemathesis_hooks"}
    environment = {**os.environ, **hooks, "SERVED_MODEL": "embedded-target"}
    return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


def _result(report: dict[str, Any]) -> dict[str, Any]:
    """Return what is worth keeping of Schemathesis' report."""
    return {
        "schemathesis": report["schemathesis_version"],
        "seed": report["seed"],
        "seconds": round(report["running_time"]),
        "operations": report["operations"]["tested"],
        "requests": report["test_cases"]["generated"],
        "accepted": {
            name: sum(phase["accepted"] for phase in phases.values())
            for name, phases in report["valid_rates"].items()
            if name.startswith("POST /v1/")
        },
        "phases": {name: phase["status"] for name, phase in report["phases"].items()},
        "failures": report["failures"],
        "errors": report["errors"],
        "checks left out": _LEFT_OUT,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
