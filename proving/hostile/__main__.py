"""Entry point of `python -m proving.hostile`: see `run`."""

import sys

from proving.hostile.run import main

sys.exit(main())
