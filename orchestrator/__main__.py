"""Run the orchestrator: ``python -P -m orchestrator --verifier HOST:PORT --draft HOST:PORT``."""

from __future__ import annotations

import sys

from slipstream.extras import require
from slipstream.garbage import collect_from_now_on, leave_imports_alone

require("orchestrator", "orchestrator")  # before anything imports what it brings
leave_imports_alone()

from orchestrator.processes.process import run_process
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.processes.supervisor import supervise


def main() -> None:
    """Read the settings and serve until signalled, in this process or in several."""
    collect_from_now_on()
    settings = OrchestratorSettings()
    if settings.process_count == 1:
        run_process(settings)
    else:
        sys.exit(supervise(settings))


if __name__ == "__main__":
    main()
