"""Run the orchestrator: ``python -m orchestrator --verifier HOST:PORT --draft HOST:PORT``."""

from __future__ import annotations

import sys

from slipstream.extras import require

require("orchestrator", "orchestrator")  # before anything imports what it brings

from orchestrator.config import OrchestratorSettings
from orchestrator.process import run_process
from orchestrator.supervisor import supervise


def main() -> None:
    """Read the settings and serve until signalled, in this process or in several."""
    settings = OrchestratorSettings()
    if settings.process_count == 1:
        run_process(settings)
    else:
        sys.exit(supervise(settings))


if __name__ == "__main__":
    main()
