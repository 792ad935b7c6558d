"""Simulated draft and verifier in one process that computes nothing, so that benchmarks measure the
orchestrator.

Forwards take a set time. All items that arrived meanwhile share the next forward, and so do all
runs and all guesses. Run it as ``python -m benchmarks.simulated --address HOST:PORT``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import math
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from benchmarks.simulated_sequences import PLAIN, Guess, Handle, HintedRun, draft_token
from slipstream.agreed import WIRE_VERSION
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.rpc.channel import SERVER_OPTIONS
from slipstream.rpc.sampling_wire import defaults_message
from slipstream.rpc.wire import duration
from slipstream.sampling.rule import SamplingDefaults
from slipstream.wire.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)

_MAX_DRAFT_LENGTH = 32
_PROFILED = 1, 256
"""Token counts of the steps whose times a service reports, as ours do. Here every step takes the
same time."""


class Simulated(
    model_pb2_grpc.ModelServiceServicer, draft_pb2_grpc.DraftServiceServicer, verifier_pb2_grpc.VerifierServiceServicer
):
    """Both roles. ``agreement`` is that of every draft token, by a hash of its context."""

    def __init__(self, agreement: float, verify_seconds: float, step_seconds: float) -> None:
        self._agreement = agreement
        self._verify_seconds = verify_seconds
        self._step_seconds = step_seconds
        self._handles: dict[str, Handle] = {}
        self._files = load_tokenizer_files("arithmetic:")

    async def GetModelInfo(self, request: Any, context: Any) -> model_pb2.GetModelInfoResponse:
        info = model_pb2.ModelInfo(
            name="simulated",
            architecture="Simulated",
            vocabulary_size=PLAIN.vocabulary,
            tokenizer_fingerprint=self._files.fingerprint,
            context_length=2**20,
            end_token_ids=[2],
            sampling_defaults=defaults_message(SamplingDefaults()),
            dtype="float32",
            device="cpu",
            max_draft_length=_MAX_DRAFT_LENGTH,
            wire_version=WIRE_VERSION,
            weights_fingerprint="simulated",
            step_times=[model_pb2.StepTime(token_count=n, time=duration(self._verify_seconds)) for n in _PROFILED],
        )
        return model_pb2.GetModelInfoResponse(model=info)

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        for name, data in self._files.files.items():
            digest = hashlib.sha256(data).hexdigest()
            yield model_pb2.GetTokenizerResponse(file_name=name, data=data, sha256=digest)

    async def GetLoad(self, request: Any, context: Any) -> model_pb2.GetLoadResponse:
        return model_pb2.GetLoadResponse()

    async def Verify(self, request_iterator: Any, context: Any) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        async for items in _batches(request_iterator, self._verify_seconds):
            yield verifier_pb2.VerifyResponse(results=[self._verify(item, len(items)) for item in items])

    async def Propose(self, request_iterator: Any, context: Any) -> AsyncIterator[draft_pb2.ProposeResponse]:
        async for items in _batches(request_iterator, 0.0):
            if self._step_seconds:
                await asyncio.sleep(self._step_seconds * max(item.draft_length for item in items))
            yield draft_pb2.ProposeResponse(results=[self._propose(item) for item in items])

    async def Run(self, request_iterator: Any, context: Any) -> AsyncIterator[verifier_pb2.RunResponse]:
        """Continue all runs of the stream by a step at a time."""
        runs: dict[str, HintedRun] = {}
        async with _reading(request_iterator, partial(self._take_run, runs)) as arrived:
            while True:
                began = time.monotonic()
                able = [run for run in runs.values() if run.may_step]
                holds = {run: run.held_until(began) for run in able}
                stepping = [run for run in able if not holds[run]]
                if not stepping:
                    await _next(arrived, min(holds.values(), default=math.inf) - began)
                    continue
                await asyncio.sleep(self._verify_seconds)
                ended = time.monotonic()
                stepped = [run for run in stepping if runs.get(run.item.handle) is run]
                results = [run.step(began, ended, len(stepping)) for run in stepped]
                for run in stepped:
                    if run.has_ended:
                        del runs[run.item.handle]
                if results:
                    yield verifier_pb2.RunResponse(results=results)

    def _take_run(self, runs: dict[str, HintedRun], item: verifier_pb2.RunItem) -> None:
        action = item.WhichOneof("action")
        known = runs.get(item.handle)
        if action == "start":
            runs[item.handle] = HintedRun(item, self._stated(item.handle, item.start))
        elif known is None or known.item.round != item.round:
            return
        elif action == "grant":
            known.grant(item.grant.granted_length)
        elif action == "hint":
            known.hint(item.hint)
        else:
            del runs[item.handle]

    async def Draft(self, request_iterator: Any, context: Any) -> AsyncIterator[draft_pb2.DraftResponse]:
        """Guess on for all sequences of the stream by a step at a time."""
        guesses: dict[str, Guess] = {}
        async with _reading(request_iterator, partial(self._take_guess, guesses)) as arrived:
            while True:
                due = [guess for guess in guesses.values() if guess.is_due]
                if due:
                    yield draft_pb2.DraftResponse(results=[guess.result() for guess in due])
                working = [guess for guess in guesses.values() if guess.wanted > 0]
                if not working:
                    await _next(arrived, math.inf)
                    continue
                if self._step_seconds:
                    await asyncio.sleep(self._step_seconds)
                for guess in working:
                    guess.extend(1 if self._step_seconds else guess.wanted)

    def _take_guess(self, guesses: dict[str, Guess], item: draft_pb2.DraftItem) -> None:
        action = item.WhichOneof("action")
        known = guesses.get(item.handle)
        if action == "start":
            handle = self._stated(item.handle, item.start)
            guesses[item.handle] = Guess(item, handle, self._agreement, self._step_seconds)
        elif known is None or known.item.round != item.round:
            return
        elif action == "commit":
            known.commit(item.commit)
        else:
            del guesses[item.handle]

    def _stated(self, name: str, item: Any) -> Handle:
        """Return a handle after what an item states."""
        if item.HasField("open"):
            self._handles.setdefault(name, Handle())
        handle = self._handles[name]
        handle.state(item.base_length, item.tail)
        return handle

    def _verify(self, item: verifier_pb2.VerifyItem, batch: int) -> verifier_pb2.VerifyResult:
        if item.HasField("close"):
            self._handles.pop(item.handle, None)
            return verifier_pb2.VerifyResult(handle=item.handle, round=item.round)
        chosen = self._stated(item.handle, item).choose(item.proposal)
        timing = model_pb2.ItemTiming(
            forward=duration(self._verify_seconds),
            total=duration(self._verify_seconds),
            forward_count=1,
            step_token_count=batch * (1 + len(item.proposal)),
        )
        return verifier_pb2.VerifyResult(
            handle=item.handle,
            round=item.round,
            accepted_count=len(chosen) - 1,
            next_token=chosen[-1],
            prefilled_count=len(item.tail),
            timing=timing,
        )

    def _propose(self, item: draft_pb2.ProposeItem) -> draft_pb2.ProposeResult:
        if item.HasField("close"):
            self._handles.pop(item.handle, None)
            return draft_pb2.ProposeResult(handle=item.handle, round=item.round)
        handle = self._stated(item.handle, item)
        total, position = handle.sums[-1], handle.length
        tokens = []
        for _ in range(item.draft_length):
            tokens.append(draft_token(total, position, self._agreement))
            total += tokens[-1]
            position += 1
        seconds = duration(self._step_seconds * item.draft_length)
        return draft_pb2.ProposeResult(
            handle=item.handle,
            round=item.round,
            tokens=tokens,
            timing=model_pb2.ItemTiming(forward=seconds, total=seconds, forward_count=item.draft_length),
        )


@asynccontextmanager
async def _reading(requests: Any, take: Callable[[Any], None]) -> AsyncIterator[asyncio.Event]:
    """Take each item as it arrives. The event is set whenever some have."""
    arrived = asyncio.Event()

    async def read() -> None:
        async for request in requests:
            for item in request.items:
                take(item)
            arrived.set()

    reader = asyncio.create_task(read())
    try:
        yield arrived
    finally:
        reader.cancel()


async def _next(arrived: asyncio.Event, seconds: float) -> None:
    """Wait until more has arrived, for so many seconds at most."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(arrived.wait(), None if seconds == math.inf else seconds)
    arrived.clear()


async def _batches(requests: Any, seconds: float) -> AsyncIterator[list[Any]]:
    """Yield all items that arrived while the last batch took its time."""
    waiting: list[Any] = []
    async with _reading(requests, waiting.append) as arrived:
        while True:
            await arrived.wait()
            arrived.clear()
            items = waiting[:]
            waiting.clear()
            if seconds:
                await asyncio.sleep(seconds)
            if items:
                yield items


async def _serve(options: argparse.Namespace) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    servicer = Simulated(options.agreement, options.verify_ms / 1e3, options.step_ms / 1e3)
    model_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)
    health = HealthServicer()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    server.add_insecure_port(options.address)
    await server.start()
    gc.freeze()
    gc.set_threshold(50_000)  # as the orchestrator: what it shares the processors with should not slow it down
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    await ending.wait()
    await server.stop(0)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--verify-ms", type=float, default=25)
    parser.add_argument("--step-ms", type=float, default=0)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
