"""Run the gateway: ``python -P -m gateway --orchestrator HOST:PORT --address HOST:PORT``."""

from __future__ import annotations

from slipstream.extras import require

require("gateway", "gateway")  # before anything imports what it brings

from gateway.serving import serve
from gateway.settings import GatewaySettings
from slipstream.given_settings import read_settings


def main() -> None:
    """Read the settings and serve until signalled."""
    serve(read_settings(GatewaySettings, "gateway"))


if __name__ == "__main__":
    main()
