"""``slipstream distill``: the process that trains."""

from __future__ import annotations

import sys

from slipstream.extras import require


def main() -> int:
    """Entry point. Returns the exit status: 130 if the user has stopped it."""
    require("slipstream distill", "torch")
    from slipstream.distilling.settings import read_settings
    from slipstream.errors import SlipstreamError

    try:
        settings = read_settings(sys.argv[1:])
        from slipstream.distilling.run import run  # torch takes seconds

        return run(settings)
    except SlipstreamError as error:
        print(f"slipstream distill: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
