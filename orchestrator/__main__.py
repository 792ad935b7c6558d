"""Run the orchestrator: ``python -P -m orchestrator --verifier HOST:PORT --draft HOST:PORT``."""

from __future__ import annotations

import sys

from slipstream.extras import require
from slipstream.garbage import pause_collection, resume_collection

require("orchestrator", "orchestrator")  # before anything imports what it brings
pause_collection()

from orchestrator.processes.process import run_process
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.processes.supervisor import supervise
from slipstream.given_settings import read_settings


def main() -> None:
    """Read the settings and serve until signalled, in this process or in several."""
    resume_collection()
    settings = read_settings(OrchestratorSettings, "orchestrator")
    if settings.process_count == 1:
        run_process(settings)
    else:
        sys.exit(supervise(settings))


if __name__ == "__main__":
    main()
