"""Run a session: ``python -m proving.draft_upkeep``.

The embedded pair serves two tasks for a week of its own clock. The requests of one change, and its
acceptance falls. The alert's rule and ``slipstream drift`` see it, ``slipstream distill`` trains a
new draft on what was collected, and ``slipstream swap`` puts it in place under traffic.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from proving.draft_upkeep.scale import FULL, SMALL
from proving.draft_upkeep.session import Session


def main() -> int:
    """Entry point. Returns 1 if the new draft was not kept, or a text changed."""
    parser = argparse.ArgumentParser(description="Let a draft drift, train it again, and replace it under traffic.")
    parser.add_argument("--small", action="store_true", help="a short session, as the tests run it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipstream-upkeep-") as folder:
        outcome = Session(Path(folder), SMALL if options.small else FULL, lambda line: print(line, flush=True)).run()
    return int(not outcome.is_kept or outcome.changed_count > 0)


if __name__ == "__main__":
    sys.exit(main())
