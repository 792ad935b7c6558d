"""Check the verifier over a real vLLM server, and measure it: ``make test-vllm``.

The results are written to docs/suites/vllm.json, and as a table to docs/suites/vllm.md.
``--speed`` measures the speed too, on the embedded pair and on larger targets that say the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from suites.vllm import checks, speed
from suites.vllm.report import table
from suites.vllm.server import ROOT

RESULT = ROOT / "docs" / "suites" / "vllm.json"
TABLE = ROOT / "docs" / "suites" / "vllm.md"


def main() -> None:
    """Run what the flags ask for, and keep it. Exits with 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m suites.vllm", description=__doc__)
    parser.add_argument(
        "--speed", nargs="*", choices=speed.TARGETS, help="targets whose speed is measured too; none: all"
    )
    parser.add_argument("--skip-checks", action="store_true", help="keep the checks' last results")
    parsed = parser.parse_args()
    result: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if not parsed.skip_checks:
        result["checks"] = checks.run()
        _keep(result)
    if parsed.speed is not None:
        measured = result.setdefault("speed", {"targets": {}})
        measured["note"] = speed.NOTE
        for name in parsed.speed or speed.TARGETS:
            measured["targets"][name] = speed.measure(name)
            _keep(result)
    failed = [name for name, found in result.get("checks", {}).items() if not found["holds"]]
    if failed:
        sys.exit(f"does not hold: {', '.join(failed)}")


def _keep(result: dict[str, Any]) -> None:
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    TABLE.write_text(table(result))


if __name__ == "__main__":
    main()
