"""A structure's trial ends with the call that it is for, and its process is gone with the
service."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import psutil
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Settings, Structure
from slipstream.errors import Code
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

PAPER = "arithmetic:ends=0&context=256"
ENDLESS = json.dumps({"allOf": [{"type": "integer", "multipleOf": 4999}, {"multipleOf": 4993}]})
FLAGS = ("--structure-compile-seconds", "600", "--structure-memory-mib", "100000")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def trials_of(service: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in service.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "slipstream.structures.child" in child.cmdline():
                found.append(child)
    return found


def test_a_trial_ends_with_its_call_and_its_process_with_the_service() -> None:
    with LocalServices(PairSettings(PAPER, "", orchestrator_flags=FLAGS)) as local:
        orchestrator = psutil.Process(local.services["orchestrator"].process.pid)
        with Client(local.orchestrator_address, reconnect=0) as client:
            plain = Settings(structure=Structure(choices=["yes"]), max_token_count=8)
            assert client.generate("hello", plain).wait().text == "yes"
            until(lambda: len(trials_of(orchestrator)) == 2)
            trials = trials_of(orchestrator)
            with pytest.raises(PeerError) as caught:
                client.generate("hello", Settings(structure=Structure(json_schema=ENDLESS)), timeout=2).wait()
            assert caught.value.code is Code.DEADLINE_EXCEEDED
            until(lambda: not all(trial in trials_of(orchestrator) for trial in trials))
            until(lambda: len(trials_of(orchestrator)) == 2)
            others = Settings(structure=Structure(choices=["no"]), max_token_count=8)
            assert client.generate("hello", others).wait().text == "no"
        left = trials_of(orchestrator)
    until(lambda: not any(trial.is_running() for trial in left))


def test_processes_that_are_started_anew_break_no_connection_of_other_callers() -> None:
    """Each structure here exceeds its limit of memory, so its process ends and another one starts
    while others connect. Bare channels try nothing twice."""
    pair = PairSettings(PAPER, "")
    failed: list[grpc.RpcError] = []
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        ended = threading.Event()

        def connect_again_and_again() -> None:
            while not ended.is_set():
                with grpc.insecure_channel(
                    local.orchestrator_address, [("grpc.use_local_subchannel_pool", 1)]
                ) as channel:
                    try:
                        OrchestratorServiceStub(channel).GetServerInfo(pb.GetServerInfoRequest(), timeout=60)
                    except grpc.RpcError as error:
                        failed.append(error)

        with ThreadPoolExecutor(4) as others:
            connecting = [others.submit(connect_again_and_again) for _ in range(4)]
            try:
                for number in range(24):
                    large = {"allOf": [{"type": "integer", "multipleOf": 4999 + 2 * number}, {"multipleOf": 4993}]}
                    with pytest.raises(PeerError, match="--structure-memory-mib"):
                        client.generate("x", Settings(structure=Structure(json_schema=json.dumps(large)))).wait()
            finally:
                ended.set()
            for each in connecting:
                each.result()
    assert not failed
