"""Chats beside a client that asks and never reads: time between tokens, the texts, and the
orchestrator's memory.

Beside the chats a client asks for four more answers every twenty seconds. In one phase it reads
them. In the next it never does, so its streams stay open with unread answers.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import psutil
from rich.table import Table

from benchmarks.report import Report, add_output
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import AsyncClient, Settings

PAIR = PairSettings(
    target="arithmetic:ends=0&forward_ms=10&row_us=20",
    draft="arithmetic:ends=0&agreement=0.8&forward_ms=1",
    target_flags=["--kv-memory-mib", "64"],
    orchestrator_flags=["--max-session-count", "256"],  # reached at once: what is kept of ended answers grows no more
)
OTHER = """
import sys, threading, time, uuid
import grpc
from slipstream.v1 import orchestrator_pb2 as pb, orchestrator_pb2_grpc
stub = orchestrator_pb2_grpc.OrchestratorServiceStub(grpc.insecure_channel(sys.argv[1]))
settings = {"max_token_count": 1000, "speculation": {"off": {}}}
calls = []
print("asking", flush=True)
while True:
    for index in range(4):
        prompt = pb.TokenList(token_ids=[5, 6, 7 + index])
        calls.append(stub.Generate(pb.GenerateRequest(tokens=prompt, settings=settings, request_id=uuid.uuid4().hex)))
        if sys.argv[2] == "reads":
            threading.Thread(target=list, args=(calls[-1],), daemon=True).start()
    time.sleep(20)
"""


async def chat(client: AsyncClient, index: int, tokens: int, until: float, gaps: list[float]) -> list[list[int]]:
    """Read one reader's answers until a time. ``gaps`` gets the seconds between its tokens'
    arrivals."""
    answers = []
    while time.monotonic() < until:
        arrivals = []
        reply = await client.generate([10 + index, 20, 30], Settings(max_token_count=tokens, draft_length=4))
        async for delta in reply.deltas():
            if delta.token_ids:
                arrivals.append(time.monotonic())
        gaps += [after - before for before, after in pairwise(arrivals)]
        answers.append(reply.result.token_ids)
    return answers


async def phase(address: str, readers: int, tokens: int, seconds: float) -> tuple[list[float], set[tuple[int, ...]]]:
    """Return the gaps in seconds, and the different answers, each after its reader's number."""
    gaps: list[float] = []
    async with AsyncClient(address) as client:
        until = time.monotonic() + seconds
        said = await asyncio.gather(*(chat(client, index, tokens, until, gaps) for index in range(readers)))
    return gaps, {(index, *answer) for index, answers in enumerate(said) for answer in answers}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=16, help="chats that read")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of their answers")
    parser.add_argument("--seconds", type=float, default=60, help="time beside the client that never reads")
    parser.add_argument("--reading", type=float, default=60, help="time beside one that reads, before and after")
    add_output(parser)
    options = parser.parse_args()
    report = Report("frozen_reader", __doc__ or "", options.output)
    table = Table("the other client", "deliveries", "p50 ms", "p95 ms", "different answers", "memory MiB")
    with LocalServices(PAIR) as local:
        address = local.orchestrator_address
        orchestrator = psutil.Process(local.services["orchestrator"].process.pid)
        asyncio.run(phase(address, options.readers, options.tokens, 10))
        for other, seconds in (
            ("reads", options.reading),
            ("never reads", options.seconds),
            ("reads", options.reading),
        ):
            command = [sys.executable, "-c", OTHER, address, other]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
                assert asking.stdout is not None and asking.stdout.readline() == "asking\n"
                before = orchestrator.memory_info().rss
                gaps, answers = asyncio.run(phase(address, options.readers, options.tokens, seconds))
                after = orchestrator.memory_info().rss
                asking.kill()
            p50, p95 = np.percentile(np.array(gaps) * 1e3, [50, 95])
            memory = f"{before / 2**20:.1f} to {after / 2**20:.1f}"
            table.add_row(other, f"{len(gaps):,}", f"{p50:.1f}", f"{p95:.1f}", str(len(answers)), memory)
    report.show(table)


if __name__ == "__main__":
    main()
