"""Measure what rounds and runs take besides their models.

The first table has one exchange with a model service, and the orchestrator's own part. The model is
arithmetic and computes next to nothing. ``step`` is the time that the service reports for its
forward. ``besides`` is the rest: sockets, event loops, threads, messages. A bare stream that echoes
messages of the same size shows what sockets, grpc and Python's event loops take alone. ``CPU`` is
the processor time of each side's process for one exchange.

The second table has whole rounds of one session, with the systems taking turns. ``own`` is what
belongs neither to the draft, nor to the verifier, nor to the network.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
from rich.table import Table

from benchmarks.report import Report, add_output
from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.exchange import PeerTiming, Terms
from orchestrator.peers.model_peer import ModelPeer
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifier_run import Limits
from orchestrator.speculation.proposal import Proposal
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, Settings
from slipstream.engine.arithmetic import ArithmeticSettings, next_token
from slipstream.event_loop import run_in_loop
from slipstream.interpreter import module_command
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import Server
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc

MODEL = "arithmetic:ends=0&context=100000"
DRAFT_LENGTH = 8
RUN_LENGTH = 64
PROMPT = [5, 6, 7]
ANSWER_LENGTH = 600
SAMPLED = SamplingRule(temperature=0.8, seed=1)

Exchange = Callable[[], Awaitable[tuple[float, float]]]
"""A function that runs one exchange and returns its seconds, and the model's share of them."""


class Echo(verifier_pb2_grpc.VerifierServiceServicer):
    """A verifier that answers every item with an empty result, and does nothing."""

    async def Run(self, request_iterator: Any, context: Any) -> AsyncIterator[verifier_pb2.RunResponse]:
        raise AssertionError("an exchange is one round")
        yield

    async def Verify(
        self, request_iterator: AsyncIterator[verifier_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        async for request in request_iterator:
            yield verifier_pb2.VerifyResponse(
                results=[verifier_pb2.VerifyResult(handle=item.handle, round=item.round) for item in request.items]
            )


async def serve_echo(address: str) -> None:
    """Serve until a signal."""
    server = Server(address, ())
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Echo(), server.grpc)
    await server.start()
    await server.run_until_signalled()


async def bare(address: str, stack: AsyncExitStack) -> Exchange:
    """Write a message and read a message."""
    channel = await stack.enter_async_context(open_channel(address))
    await channel.channel_ready()
    call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
    item = verifier_pb2.VerifyItem(handle="0123456789abcdef", round=7, base_length=100, tail=[1], proposal=range(8))

    async def once() -> tuple[float, float]:
        started = time.perf_counter()
        await call.write(verifier_pb2.VerifyRequest(items=[item]))
        await call.read()
        return time.perf_counter() - started, 0.0

    return once


def begin_again_if_long(peer: ModelPeer[Any, Any], sequence: PeerSequence, tokens: list[int]) -> None:
    """Begin a new sequence after 2,000 tokens, because the model's memory is small."""
    if len(tokens) > 2000:
        peer.close_sequence(sequence)
        sequence.forget()
        tokens[:] = PROMPT


async def verifying(address: str, stack: AsyncExitStack, rule: SamplingRule) -> Exchange:
    """Run rounds as a session does, each with an accepted proposal."""
    peer = VerifierPeer(address)
    stack.push_async_callback(peer.close)
    info = await peer.wait_until_serving()
    terms = Terms(info.tokenizer_fingerprint, "", 600.0)
    settings = ArithmeticSettings.parse(MODEL)
    sequence, tokens = PeerSequence(), [*PROMPT]

    async def once() -> tuple[float, float]:
        begin_again_if_long(peer, sequence, tokens)
        proposal: list[int] = []
        total = sum(tokens)
        for _ in range(DRAFT_LENGTH):
            proposal.append(next_token(total, len(tokens) + len(proposal), settings))
            total += proposal[-1]
        started = time.perf_counter()
        answer = await peer.verify(
            sequence, terms, sequence.position(tokens), Proposal(tuple(proposal)), rule, None, ""
        )
        seconds = time.perf_counter() - started
        tokens.extend((*proposal[: answer.accepted_count], answer.next_token))
        sequence.learn(len(tokens) - 1)
        return seconds, answer.timing.forward

    return once


async def running(address: str, stack: AsyncExitStack, rule: SamplingRule) -> Exchange:
    """Let the verifier choose `RUN_LENGTH` tokens by itself, as a session does."""
    peer = VerifierPeer(address)
    stack.push_async_callback(peer.close)
    info = await peer.wait_until_serving()
    terms = Terms(info.tokenizer_fingerprint, "", 600.0)
    sequence, tokens = PeerSequence(), [*PROMPT]

    async def once() -> tuple[float, float]:
        begin_again_if_long(peer, sequence, tokens)
        limits = Limits(len(tokens) + RUN_LENGTH, RUN_LENGTH)
        forward, started = 0.0, time.perf_counter()
        run = peer.start_run(sequence, terms, sequence.position(tokens), limits, rule, None, "")
        while len(tokens) < limits.until_length:
            part = await run.part()
            tokens.extend(part.tokens)
            forward += part.timing.forward
        seconds = time.perf_counter() - started
        sequence.learn(len(tokens) - 1)
        return seconds, forward

    return once


class _Answered:
    """Waits for a proposal."""

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[Proposal, PeerTiming]] = asyncio.get_running_loop().create_future()

    def finish(self, proposal: Proposal, timing: PeerTiming) -> None:
        self.done.set_result((proposal, timing))

    def fail(self, error: PeerError) -> None:
        self.done.set_exception(error)


async def proposing(address: str, stack: AsyncExitStack, rule: SamplingRule) -> Exchange:
    """Run proposals as a session does, all of them accepted."""
    peer = DraftPeer(address)
    stack.push_async_callback(peer.close)
    info = await peer.wait_until_serving()
    terms = Terms(info.tokenizer_fingerprint, "", 600.0)
    sequence, tokens = PeerSequence(), [*PROMPT]

    async def once() -> tuple[float, float]:
        begin_again_if_long(peer, sequence, tokens)
        answered = _Answered()
        started = time.perf_counter()
        peer.propose(sequence, terms, sequence.position(tokens), DRAFT_LENGTH, rule, "", answered)
        proposal, timing = await answered.done
        seconds = time.perf_counter() - started
        sequence.learn(len(tokens))
        tokens.extend(proposal.tokens)
        return seconds, timing.forward

    return once


async def measure(exchange: Exchange, peer: psutil.Process, count: int) -> dict[str, float]:
    """Return the microseconds of ``count`` exchanges."""
    own = psutil.Process()
    for _ in range(count // 5):
        await exchange()
    before = [sum(process.cpu_times()[:2]) for process in (own, peer)]
    times, steps = [], []
    for _ in range(count):
        seconds, step = await exchange()
        times.append(seconds)
        steps.append(step)
    spent = [sum(process.cpu_times()[:2]) - cpu for process, cpu in zip((own, peer), before, strict=True)]
    return {
        "p50": statistics.median(times) * 1e6,
        "p95": statistics.quantiles(times, n=20)[-1] * 1e6,
        "step": statistics.median(steps) * 1e6,
        "besides": statistics.median(t - s for t, s in zip(times, steps, strict=True)) * 1e6,
        "CPU here": spent[0] / count * 1e6,
        "CPU there": spent[1] / count * 1e6,
    }


async def run(local: LocalServices, echo: tuple[str, psutil.Process], options: argparse.Namespace) -> Table:
    """Run all kinds of exchange in turns."""
    verifier, draft = local.services["verifier"], local.services["draft"]
    processes = {service.name: psutil.Process(service.process.pid) for service in (verifier, draft)}
    greedy = SamplingRule()
    found: dict[str, list[dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        verifying_at = partial(verifying, verifier.address, stack)
        kinds = {
            "a bare stream": (await bare(echo[0], stack), echo[1]),
            f"a run of {RUN_LENGTH} tokens, T = 0": (
                await running(verifier.address, stack, greedy),
                processes["verifier"],
            ),
            f"verify, K = {DRAFT_LENGTH}, T = 0": (await verifying_at(greedy), processes["verifier"]),
            f"verify, K = {DRAFT_LENGTH}, T = 0.8": (await verifying_at(SAMPLED), processes["verifier"]),
            f"propose, K = {DRAFT_LENGTH}, T = 0": (
                await proposing(draft.address, stack, greedy),
                processes["draft"],
            ),
        }
        for _ in range(options.repetitions):
            for name, (exchange, process) in kinds.items():
                found.setdefault(name, []).append(await measure(exchange, process, options.count))
    table = Table(title="one exchange after another, microseconds")
    columns = [*found["a bare stream"][0]]
    for column in ("exchange", *columns):
        table.add_column(column, justify="left" if column == "exchange" else "right")
    for name, runs in found.items():
        table.add_row(name, *(f"{statistics.median(run[column] for run in runs):.0f}" for column in columns))
    return table


async def show_exchanges(
    report: Report, local: LocalServices, echo: tuple[str, psutil.Process], options: argparse.Namespace
) -> None:
    """Show exchanges in an event loop like the services'."""
    report.show(await run(local, echo, options))


def rounds(local: LocalServices, options: argparse.Namespace) -> Table:
    """Measure rounds by the way their length is chosen."""
    modes = {
        "off": Settings(draft_length=0),
        f"K = {DRAFT_LENGTH}": Settings(draft_length=DRAFT_LENGTH),
        "adaptive": Settings(draft_length="adaptive", proposer="draft"),
    }
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in modes}
    with Client(local.orchestrator_address) as client:
        for repetition in range(options.repetitions + 1):
            for name, mode in modes.items():
                settings = replace(mode, temperature=0, max_token_count=ANSWER_LENGTH)
                result = client.generate([10, 20, 30 + repetition], settings).wait()
                times = (result.total_time, result.orchestrator_time, result.network_time)
                if repetition:  # the first repetition warms up, so its rounds are not usual ones
                    found[name].append(tuple(seconds / result.round_count * 1e6 for seconds in times))
    table = Table(title=f"rounds of one session, {ANSWER_LENGTH} tokens an answer, microseconds")
    for column in ("draft length", "round", "own", "network", "own, over a fixed length"):
        table.add_column(column, justify="left" if column == "draft length" else "right")
    medians = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}
    fixed = medians[f"K = {DRAFT_LENGTH}"][1]
    for name, values in medians.items():
        table.add_row(name, *(f"{value:.0f}" for value in values), f"{values[1] - fixed:+.0f}")
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="exchanges in a repetition")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--echo", metavar="ADDRESS", help=argparse.SUPPRESS)
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.echo:
        run_in_loop(serve_echo(options.echo))
        return
    report = Report("exchange", __doc__ or "", options.output)
    address = free_address()
    echo = subprocess.Popen(module_command("benchmarks.exchange", "--echo", address))
    try:
        flags = ["--kv-memory-mib", "1"]
        with LocalServices(PairSettings(target=MODEL, draft=MODEL, target_flags=flags, draft_flags=flags)) as local:
            run_in_loop(show_exchanges(report, local, (address, psutil.Process(echo.pid)), options))
        pair = PairSettings(target=MODEL, draft=f"{MODEL}&agreement=0.8", target_flags=flags, draft_flags=flags)
        with LocalServices(pair) as local:
            report.show(rounds(local, options))
    finally:
        echo.terminate()
        echo.wait()


if __name__ == "__main__":
    main()
