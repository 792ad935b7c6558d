"""Simulated draft and verifier in one process that computes nothing, so that benchmarks measure the
orchestrator.

It speaks the contract and keeps only the sums of each handle's tokens. The paper model's next token
is the sum plus the position, so an answer costs one addition a token. Forwards take a set time, and
all items that arrived meanwhile share the next one. Run it as ``python -m benchmarks.simulated
--address HOST:PORT``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from slipstream.engine.arithmetic import ArithmeticSettings, next_token
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

_PLAIN = ArithmeticSettings(ends=0)
_MAX_DRAFT_LENGTH = 32
_PROFILED = 1, 256
"""Token counts of the steps whose times a service reports, as ours do. Here every step takes the
same time."""


class _Handle:
    """Sums of a sequence's tokens: ``sums[n]`` is that of the first n."""

    def __init__(self) -> None:
        self.sums = [0]

    def state(self, base_length: int, tail: Any) -> None:
        del self.sums[base_length + 1 :]
        for token in tail:
            self.sums.append(self.sums[-1] + token)


class Simulated(
    model_pb2_grpc.ModelServiceServicer, draft_pb2_grpc.DraftServiceServicer, verifier_pb2_grpc.VerifierServiceServicer
):
    """Both roles. ``agreement`` is that of every draft token, by a hash of its context."""

    def __init__(self, agreement: float, verify_seconds: float, step_seconds: float) -> None:
        self._agreement = agreement
        self._verify_seconds = verify_seconds
        self._step_seconds = step_seconds
        self._handles: dict[str, _Handle] = {}
        self._files = load_tokenizer_files("arithmetic:")

    async def GetModelInfo(self, request: Any, context: Any) -> model_pb2.GetModelInfoResponse:
        info = model_pb2.ModelInfo(
            name="simulated",
            architecture="Simulated",
            vocabulary_size=_PLAIN.vocabulary,
            tokenizer_fingerprint=self._files.fingerprint,
            context_length=2**20,
            end_token_ids=[2],
            sampling_defaults=defaults_message(SamplingDefaults()),
            dtype="float32",
            device="cpu",
            max_draft_length=_MAX_DRAFT_LENGTH,
            weights_fingerprint="simulated",
            step_times=[model_pb2.StepTime(token_count=n, time=duration(self._verify_seconds)) for n in _PROFILED],
        )
        return model_pb2.GetModelInfoResponse(model=info)

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        for name, data in self._files.files.items():
            yield model_pb2.GetTokenizerResponse(file_name=name, data=data)

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
        """Continue all runs of the stream by a token a step."""
        runs: dict[str, _Run] = {}
        arrived = asyncio.Event()

        async def read() -> None:
            async for request in request_iterator:
                for item in request.items:
                    self._take(item, runs)
                arrived.set()

        reader = asyncio.create_task(read())
        try:
            while True:
                stepping = [run for run in runs.values() if run.may_step]
                if not stepping:
                    await arrived.wait()
                    arrived.clear()
                    continue
                await asyncio.sleep(self._verify_seconds)
                results = [run.step(self._verify_seconds, len(stepping)) for run in stepping if run.may_step]
                for run in stepping:
                    if run.has_ended:
                        runs.pop(run.item.handle, None)
                yield verifier_pb2.RunResponse(results=results)
        finally:
            reader.cancel()

    def _take(self, item: verifier_pb2.RunItem, runs: dict[str, _Run]) -> None:
        known = runs.get(item.handle)
        action = item.WhichOneof("action")
        if action == "start":
            if item.start.HasField("open"):
                self._handles.setdefault(item.handle, _Handle())
            handle = self._handles[item.handle]
            handle.state(item.start.base_length, item.start.tail)
            runs[item.handle] = _Run(item, handle)
        elif known is None or known.item.round != item.round:
            return
        elif action == "grant":
            known.granted = max(known.granted, item.grant.granted_length)
        else:
            del runs[item.handle]

    def _verify(self, item: verifier_pb2.VerifyItem, batch: int) -> verifier_pb2.VerifyResult:
        if item.HasField("close"):
            self._handles.pop(item.handle, None)
            return verifier_pb2.VerifyResult(handle=item.handle, round=item.round)
        if item.HasField("open"):
            self._handles.setdefault(item.handle, _Handle())
        handle = self._handles[item.handle]
        handle.state(item.base_length, item.tail)
        total, position = handle.sums[-1], len(handle.sums) - 1
        accepted = 0
        token = next_token(total, position, _PLAIN)
        for proposed in item.proposal:
            if proposed != token:
                break
            accepted += 1
            total += token
            position += 1
            handle.sums.append(total)
            token = next_token(total, position, _PLAIN)
        timing = model_pb2.ItemTiming(
            forward=duration(self._verify_seconds),
            total=duration(self._verify_seconds),
            forward_count=1,
            step_token_count=batch * (1 + len(item.proposal)),
        )
        return verifier_pb2.VerifyResult(
            handle=item.handle,
            round=item.round,
            accepted_count=accepted,
            next_token=token,
            prefilled_count=len(item.tail),
            timing=timing,
        )

    def _propose(self, item: draft_pb2.ProposeItem) -> draft_pb2.ProposeResult:
        if item.HasField("close"):
            self._handles.pop(item.handle, None)
            return draft_pb2.ProposeResult(handle=item.handle, round=item.round, final=True)
        if item.HasField("open"):
            self._handles.setdefault(item.handle, _Handle())
        handle = self._handles[item.handle]
        handle.state(item.base_length, item.tail)
        total, position = handle.sums[-1], len(handle.sums) - 1
        tokens = []
        for _ in range(item.draft_length):
            token = next_token(total, position, _PLAIN)
            if ((total * 2654435761 + position * 40503) >> 7) % 100_003 / 100_003 >= self._agreement:
                token = 3 + (token + 1) % (_PLAIN.vocabulary - 3)
            tokens.append(token)
            total += token
            position += 1
        seconds = duration(self._step_seconds * item.draft_length)
        return draft_pb2.ProposeResult(
            handle=item.handle,
            round=item.round,
            branches=[draft_pb2.Branch(tokens=tokens)],
            final=True,
            timing=model_pb2.ItemTiming(forward=seconds, total=seconds, forward_count=item.draft_length),
        )


class _Run:
    """A run that goes on by a token a step."""

    def __init__(self, item: verifier_pb2.RunItem, handle: _Handle) -> None:
        self.item, self._handle = item, handle
        self.granted = item.start.granted_length
        self._length = item.start.base_length + len(item.start.tail)
        self._token: int | None = None

    @property
    def has_ended(self) -> bool:
        """True at the run's length."""
        return self._length >= self.item.start.until_length

    @property
    def may_step(self) -> bool:
        """True below the granted length."""
        return self._length < min(self.granted, self.item.start.until_length)

    def step(self, seconds: float, batch: int) -> verifier_pb2.RunResult:
        """Choose a token in a step of ``batch`` runs."""
        if self._token is not None:
            self._handle.state(self._length - 1, [self._token])
        is_first, sums = self._token is None, self._handle.sums
        self._token = next_token(sums[-1], len(sums) - 1, _PLAIN)
        self._length += 1
        return verifier_pb2.RunResult(
            handle=self.item.handle,
            round=self.item.round,
            position=self._length - 1,
            tokens=[self._token],
            steps=[verifier_pb2.RunStep(token_count=1, forward=duration(seconds))],
            prefilled_count=len(self.item.start.tail) if is_first else 0,
            end=verifier_pb2.RUN_END_UNTIL if self.has_ended else verifier_pb2.RUN_END_UNSPECIFIED,
            timing=model_pb2.ItemTiming(
                forward=duration(seconds), total=duration(seconds), forward_count=1, step_token_count=batch
            ),
        )


async def _batches(requests: Any, seconds: float) -> AsyncIterator[list[Any]]:
    """Yield all items that arrived while the last batch took its time."""
    waiting: list[Any] = []
    arrived = asyncio.Event()

    async def read() -> None:
        async for request in requests:
            waiting.extend(request.items)
            arrived.set()

    reader = asyncio.create_task(read())
    try:
        while True:
            await arrived.wait()
            arrived.clear()
            items = waiting[:]
            waiting.clear()
            if seconds:
                await asyncio.sleep(seconds)
            if items:
                yield items
    finally:
        reader.cancel()


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
