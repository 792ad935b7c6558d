"""Run a model service: listen, load the model, serve, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from slipstream.engine.engine import Engine
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.hidden_heads import HiddenHeads
from slipstream.engine.host import EngineHost, JobHost
from slipstream.engine.job import Job
from slipstream.engine.model import Backend
from slipstream.engine.worker import Served
from slipstream.errors import SlipstreamError
from slipstream.event_loop import run_in_loop
from slipstream.garbage import freeze_live_objects, resume_collection
from slipstream.given_settings import read_settings
from slipstream.hosting.backends import backend_of
from slipstream.hosting.collecting import Collecting, NotCollecting
from slipstream.hosting.item_service import ItemService
from slipstream.hosting.kv_room import kv_memory_mib
from slipstream.hosting.loading_gate import RefusesWhileLoading
from slipstream.hosting.metrics import readings
from slipstream.hosting.model_service import ModelService, Spoken
from slipstream.hosting.ranks.follower import follow_rank_0
from slipstream.hosting.ranks.local_ranks import LocalRanks
from slipstream.hosting.ranks.place import PlaceError, place_of
from slipstream.hosting.ranks.sharding import follow, refuse_unshared
from slipstream.hosting.service_telemetry import ServiceTelemetry
from slipstream.hosting.settings import STOCK_ENGINES, ModelServiceSettings
from slipstream.hosting.tokenizer_files import (
    TokenizerFiles,
    embedded_directory,
    load_tokenizer_files,
    refuse_tokens_without_rows,
)
from slipstream.hosting.tokenizer_json import TOKENIZER_FILE
from slipstream.interpreter import module_command
from slipstream.rpc.server import Server
from slipstream.sampling.choose import warm as warm_choosing
from slipstream.sampling.structure_compiler import StructureCompiler
from slipstream.stages import LOADING, WARMING
from slipstream.structures.trials import StructureTrials
from slipstream.telemetry.exposition import Exposition
from slipstream.telemetry.logs import configure_logging
from slipstream.telemetry.metrics import Reading
from slipstream.telemetry.tracing import exporting_spans
from slipstream.wire.v1 import model_pb2_grpc

log = logging.getLogger(__name__)

_MIB = 2**20

_WARM_SECONDS = 4.0
"""Most seconds of warming before the service reports that it serves. The rest warms while it
serves."""


@dataclass(frozen=True, slots=True)
class ServiceKind:
    """Differences between the draft and the verifier service."""

    name: str
    """Name in logs, metrics and traces."""
    module: str
    """Module that starts another rank of the service."""
    settings: type[ModelServiceSettings]
    service: Callable[..., ItemService[Any, Any, Any]]
    add_to_server: Callable[[Any, grpc.aio.Server], None]
    rpc_service: str
    """Full name of the gRPC service that is served beside ModelService."""
    embedded_model: str
    """Folder of the model that ``--model embedded`` stands for."""
    exact: bool
    """True if a row's bits have to depend on its sequence alone."""
    profile_seconds: float
    """Seconds spent on measuring step times."""
    stock_host: Callable[[Any, str, TokenizerFiles, ServiceTelemetry], JobHost[Job]] | None = None
    """Makes the host of a stock engine from the service's settings and the model's name. None: the
    service has no stock engines."""
    collecting: Callable[[Any], Collecting] = NotCollecting
    """Makes the place for what is collected of the model's choices, from the service's settings."""
    heads: Callable[[Any, str, Backend], HiddenHeads | None] = lambda settings, name, backend: None
    """Loads the heads of a target from the service's settings, the model's name and its backend."""
    spoken: Callable[[Any, TokenizerFiles], Spoken | None] | None = None
    """Returns the tokens that callers speak, by the service's settings and the model's own
    tokenizer; None if they are the model's. The service gets both tokenizers if they differ."""


def run_model_service(kind: ServiceKind) -> None:
    """Serve a model until signalled. Exits with one readable line if the service cannot start."""
    settings = read_settings(kind.settings, kind.name)
    try:
        place = place_of(settings.tensor_parallel_size, os.environ)
    except PlaceError as error:
        sys.exit(f"{kind.name}: {error}")
    configure_logging(kind.name, settings.log_level, settings.log_format, place.rank if place.size > 1 else None)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if place.rank:
        follow_rank_0(
            f"{kind.name} rank {place.rank}", lambda: follow(settings, _model_of(kind, settings), kind.exact, place)
        )
        return
    command = module_command(kind.module, *sys.argv[1:])
    try:
        refuse_unshared(settings, _model_of(kind, settings))
        with (
            LocalRanks(kind.name, place, command, settings.rank_patience_seconds) as ranks,
            exporting_spans(kind.name),
        ):
            run_in_loop(_serve(kind, settings, ranks))
    except SlipstreamError as error:
        sys.exit(f"{kind.name}: {error}")


def _model_of(kind: ServiceKind, settings: ModelServiceSettings) -> str:
    return str(embedded_directory(kind.embedded_model)) if settings.model == "embedded" else settings.model


async def _serve(kind: ServiceKind, settings: ModelServiceSettings, ranks: LocalRanks) -> None:
    served: list[tuple[JobHost[Any], ModelService]] = []  # empty while the model is being loaded
    loop = asyncio.get_running_loop()

    def source() -> Iterable[Reading]:
        return readings(kind.name, *served[0], loop) if served else ()

    with Exposition(kind.name, settings.metrics_address, source):
        await _host(kind, settings, ranks, served.append)


async def _host(
    kind: ServiceKind,
    settings: ModelServiceSettings,
    ranks: LocalRanks,
    on_serving: Callable[[tuple[JobHost[Any], ModelService]], None],
) -> None:
    server = Server(
        settings.address,
        (kind.rpc_service, "slipstream.wire.v1.ModelService"),
        drain_seconds=settings.drain_seconds,
        listening=settings.listening(),
    )
    name = _model_of(kind, settings)
    trust = settings.trust()
    collecting = kind.collecting(settings)
    loads = settings.engine not in STOCK_ENGINES
    # first: a bad tokenizer is refused at once
    tokenizer = await asyncio.to_thread(load_tokenizer_files, name, trust, weights=loads, quantised=not kind.exact)
    spoken = None if kind.spoken is None else await asyncio.to_thread(kind.spoken, settings, tokenizer)
    gate = RefusesWhileLoading()
    server.grpc.add_generic_rpc_handlers((gate,))
    port = await server.start()
    log.info("listening on port %d; %s", port, LOADING)

    def load() -> Engine:  # runs on the model thread, as all computation does
        resume_collection()  # a model may have reference cycles as large as itself
        engine = _load(kind, settings, name, ranks)
        log.info(WARMING)
        warm_choosing()
        refuse_tokens_without_rows(tokenizer, engine.model.vocabulary_size, name)
        engine.profile(kind.profile_seconds)
        engine.warm(_WARM_SECONDS)
        return engine

    telemetry = ServiceTelemetry(collecting.totals)
    host: JobHost[Job]
    try:
        if loads:
            host = EngineHost(load, settings.batch_limits(), settings.host_limits(), telemetry.record_step)
        else:
            host = _stock_host(kind, settings, name, tokenizer, telemetry)
        served = await host.start()
    except BaseException:
        await server.grpc.stop(None)
        raise
    host.trials = trials = _prepare_structures(served, tokenizer, settings)
    shown_name = f"embedded-{kind.embedded_model}" if settings.model == "embedded" else settings.model
    model_service = ModelService(
        host, tokenizer, telemetry, name=shown_name, max_draft_length=settings.max_draft_length, spoken=spoken
    )
    _add_services(
        kind, server, host, model_service, {} if spoken is None else {"tokenizers": (spoken.files, tokenizer)}
    )
    model_service.info.collect_share = collecting.share
    heads = served.heads if isinstance(served, Engine) else None
    model_service.info.heads = "" if heads is None else heads.kind
    if isinstance(served, Engine):
        served.observer = collecting.begin(model_service.info)
    gate.loaded = True
    on_serving((host, model_service))
    freeze_live_objects()
    ranks.enforce()
    await server.set_serving(True)
    log.info("serving %s on port %d", shown_name, port)
    await server.run_until_signalled()
    await trials.close()
    try:
        await host.stop()
    finally:
        await asyncio.to_thread(collecting.close)


def _prepare_structures(served: Served, tokenizer: TokenizerFiles, settings: ModelServiceSettings) -> StructureTrials:
    """Let structures be compiled; return the trials that bound what a structure may cost."""
    model, tokenizer_json = served.model, tokenizer.files[TOKENIZER_FILE]
    served.matchers.compiler = StructureCompiler(tokenizer_json, model.vocabulary_size, model.end_token_ids)
    return StructureTrials(tokenizer_json, model.vocabulary_size, model.end_token_ids, settings.compile_limits)


def _stock_host(
    kind: ServiceKind, settings: ModelServiceSettings, name: str, tokenizer: TokenizerFiles, telemetry: ServiceTelemetry
) -> JobHost[Job]:
    if kind.stock_host is None:
        raise UnsupportedModelError(
            f"--engine {settings.engine} serves a target, and this is the {kind.name} service: leave --engine out"
        )
    return kind.stock_host(settings, name, tokenizer, telemetry)


def _add_services(
    kind: ServiceKind, server: Server, host: JobHost[Any], model_service: ModelService, terms: dict[str, Any]
) -> None:
    model_pb2_grpc.add_ModelServiceServicer_to_server(model_service, server.later)
    service = kind.service(
        host,
        model_service.handles,
        model_service.telemetry,
        max_draft_length=model_service.info.max_draft_length,
        draining=server.draining,
        **terms,
    )
    kind.add_to_server(service, server.later)


def _load(kind: ServiceKind, settings: ModelServiceSettings, name: str, ranks: LocalRanks) -> Engine:
    started = time.monotonic()
    backend = backend_of(settings, name, exact=kind.exact, ranks=ranks)
    heads = kind.heads(settings, name, backend)
    engine = Engine(backend, kv_memory_mib=kv_memory_mib(settings), heads=heads)
    log.info(
        "loaded %s in %.1f s; %.0f MiB of KV in %d pages of %d tokens",
        engine.model.architecture,
        time.monotonic() - started,
        engine.kv_byte_count / _MIB,
        engine.pool.page_count,
        engine.page_size,
    )
    return engine
