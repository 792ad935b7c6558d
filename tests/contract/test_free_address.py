"""Ports that processes of one machine take for their services."""

import subprocess
import sys

from slipstream.cli.local import free_address

TAKES_FIVE = """
import itertools
from slipstream.cli import local
local._walk = itertools.cycle(range({first}, 30000))
print(*(local.free_address() for _ in range(5)))
"""


def test_a_process_takes_no_port_that_another_has_taken() -> None:
    mine = free_address()
    code = TAKES_FIVE.format(first=int(mine.rpartition(":")[2]))
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert len(set(theirs.split())) == 5 and mine not in theirs.split()
