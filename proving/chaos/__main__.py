"""Entry point of `python -m proving.chaos`: see `run`."""

import sys

from proving.chaos.run import main

sys.exit(main())
