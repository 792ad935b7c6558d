"""Entry point of `python -m proving.leaks`: see `run`."""

import sys

from proving.leaks.run import main

sys.exit(main())
