"""A model that cannot compute any more ends its process, and the exit status and the last line say
so."""

from __future__ import annotations

import subprocess
import sys

import grpc

from slipstream.cli.local import free_address
from slipstream.wire.v1 import draft_pb2
from tests.engine.test_model_thread import POISON
from tests.system.conftest import first_propose, propose_one, wait_for_health

SERVICE = """
import sys
from slipstream.hosting import backends
from tests.engine.test_model_thread import LostModel
backends.ArithmeticBackend = LostModel
import runpy
sys.argv = ["draft_service", "--model", "arithmetic:ends=0", "--kv-memory-mib", "1", "--address", sys.argv[1]]
runpy.run_module("draft_service", run_name="__main__")
"""
"""A draft service whose device is lost once it has seen POISON: every operation raises from then
on."""


def test_a_lost_device_fails_the_items_at_hand_and_ends_the_process_with_status_1() -> None:
    address = free_address()
    command = [sys.executable, "-c", SERVICE, address]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        grpc.insecure_channel(address) as channel,
    ):
        try:
            wait_for_health(channel)

            def propose(number: int, tail: list[int]) -> draft_pb2.ProposeResult:
                item = first_propose(handle="0123456789abcdef", round=number, tail=tail, draft_length=2)
                return propose_one(channel, item)

            assert len(propose(1, [5, 6]).tokens) == 2
            assert propose(2, [5, 6, POISON]).error.code == grpc.StatusCode.UNAVAILABLE.value[0]
            assert process.wait(30) == 1
        finally:
            process.kill()
        assert process.stderr is not None
        last = process.stderr.read().strip().splitlines()[-1]
    assert last.startswith("draft: the model can no longer compute:") and "device-side assert" in last
