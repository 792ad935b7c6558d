"""The start of a verifier over a stock engine: connect, wait while the server loads, measure."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tokenizers import Tokenizer

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.job import Finished
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.step_note import OnStep
from slipstream.engine.worker import MakeWorker, OnParts
from slipstream.sampling.choose import warm as warm_choosing
from slipstream.stock.openai_http import EngineHttp, origin_of
from slipstream.stock.protocol import EngineLostError, StockEngine, StockFacts
from slipstream.stock.served import ModelFiles, StockServed
from slipstream.stock.server import LOOK_SECONDS, StockServer
from slipstream.stock.sglang import SGLang
from slipstream.stock.steps import StockSteps
from slipstream.stock.thread import StockThread
from slipstream.stock.token_probe import TokenProbe
from slipstream.stock.trial import measure_steps, try_bits
from slipstream.stock.vllm import Vllm
from slipstream.transport.reloading import Reloaded

log = logging.getLogger(__name__)

_PROBE = (
    "Speculative decoding lets a small model guess what a large one would say, and the large one checks all guesses at "
    "once. Numbers like 1234 and signs such as {}[] are in this text, so that tokens of several kinds come."
)
_RETRY_SECONDS = 1.0
_TOLD_SECONDS = 15.0
"""Seconds between two lines about a server that is not there yet."""


@dataclass(frozen=True, slots=True)
class StockSettings:
    """Settings of a verifier over a stock engine."""

    engine: str
    address: str
    model: str
    """The model directory or hub id whose tokenizer and config are used."""
    bearer: Reloaded[str] | None
    start_seconds: float
    """Longest wait for the server at start."""
    timeout_seconds: float
    """Longest wait for an answer, or for the next token of one."""
    patience_seconds: float
    """Longest time for which a turn waits for a server that was lost."""
    limits: BatchLimits
    most_sequences: int
    served_as: str = ""
    """Name by which a vLLM server serves the model; empty: any."""
    look_seconds: float = LOOK_SECONDS
    """Seconds between two looks whether the server has the weights of the start."""


def stock_worker(settings: StockSettings, tokenizer_json: bytes, on_step: OnStep) -> MakeWorker:
    """Return what makes the worker of a stock engine. InvalidFieldsError for a wrong address,
    UnsupportedModelError if the model's files cannot be read."""
    files = ModelFiles(settings.model)
    probe = TokenProbe(_PROBE, Tokenizer.from_str(tokenizer_json.decode()).encode(_PROBE, add_special_tokens=False).ids)
    origin = origin_of(settings.address)
    http = EngineHttp(settings.engine, origin, bearer=settings.bearer, timeout_seconds=settings.timeout_seconds)
    engine = _engine(settings, http, files.vocabulary_size, probe)
    start = partial(_start, settings, engine, files, probe.tokens, on_step)

    def make(on_finished: Finished, on_parts: OnParts) -> StockThread:
        return StockThread(start, settings.limits.queue_limit, on_finished, on_parts)

    return make


def _engine(settings: StockSettings, http: EngineHttp, vocabulary_size: int, probe: TokenProbe) -> StockEngine:
    if settings.engine == "sglang":
        return SGLang(http, model=settings.model, vocabulary_size=vocabulary_size, probe=probe)
    return Vllm(http, model=settings.model, served_as=settings.served_as, vocabulary_size=vocabulary_size, probe=probe)


async def _start(
    settings: StockSettings, engine: StockEngine, files: ModelFiles, tokens: Sequence[int], on_step: OnStep
) -> StockSteps:
    try:
        return await _measured(settings, engine, files, tokens, on_step)
    except BaseException:
        await engine.close()
        raise


async def _measured(
    settings: StockSettings, engine: StockEngine, files: ModelFiles, tokens: Sequence[int], on_step: OnStep
) -> StockSteps:
    facts = await _connected(settings, engine)
    await asyncio.to_thread(warm_choosing)
    for lack in facts.lacks:
        log.warning("%s lacks %s", facts.engine, lack)
    tokens = tokens[: facts.context_length // 2]
    trial = await try_bits(engine, facts, tokens)
    bits = trial.sentence(facts.engine)
    log.info("%s", bits)
    profile = await measure_steps(engine, tokens)
    log.info(
        "%s at %s serves %s: a token in %.1f ms, %d rows in %.1f ms",
        facts.engine,
        settings.address,
        facts.model,
        profile[0][1] * 1e3,
        profile[-1][0],
        profile[-1][1] * 1e3,
    )
    model = files.model(facts)
    for caveat in model.caveats:
        log.warning("%s", caveat)
    served = StockServed(model, facts.context_length, profile, (bits, *model.caveats))
    server = StockServer(
        engine, facts, trial, patience_seconds=settings.patience_seconds, look_seconds=settings.look_seconds
    )
    return StockSteps(server, served, settings.limits, profile, most_sequences=settings.most_sequences, on_step=on_step)


async def _connected(settings: StockSettings, engine: StockEngine) -> StockFacts:
    """Wait until the server answers. UnsupportedModelError if it does not in time."""
    give_up = time.monotonic() + settings.start_seconds
    told = 0.0
    while True:
        try:
            return await engine.connect()
        except EngineLostError as error:
            now = time.monotonic()
            if now >= give_up:
                raise UnsupportedModelError(
                    f"{error}; start it first, or give its address with --engine-address (waited {settings.start_seconds:g} s)"
                ) from error
            if now >= told + _TOLD_SECONDS:
                told = now
                log.info("waiting for %s at %s: %s", settings.engine, settings.address, error)
            await asyncio.sleep(_RETRY_SECONDS)
