"""ModelService: model information, tokenizer and load, the same for both model services.

Wire types and the engine host meet here.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc

from slipstream.agreed import WIRE_VERSION
from slipstream.engine.host import JobHost
from slipstream.engine.job import JobTiming
from slipstream.errors import WireVersionError
from slipstream.hosting.handles import Handles
from slipstream.hosting.refused_versions import RefusedVersions
from slipstream.hosting.service_telemetry import ServiceTelemetry
from slipstream.hosting.tokenizer_files import TokenizerFiles
from slipstream.processors import Processors
from slipstream.rpc.sampling_wire import defaults_message, lengths_message
from slipstream.rpc.status import abort
from slipstream.rpc.wire import duration, set_duration
from slipstream.sampling.rule import SAMPLING_VERSION
from slipstream.wire.v1 import model_pb2, model_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

_CHUNK_BYTES = 256 * 1024


class Spoken(NamedTuple):
    """The tokens that callers speak, if they are not the model's own."""

    files: TokenizerFiles
    vocabulary_size: int
    end_token_ids: tuple[int, ...]


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Information, tokenizer, load and handles of one hosted model."""

    def __init__(
        self,
        host: JobHost[Any],
        tokenizer: TokenizerFiles,
        telemetry: ServiceTelemetry,
        *,
        name: str,
        max_draft_length: int,
        spoken: Spoken | None = None,
    ) -> None:
        """``spoken`` None: callers speak the model's own tokens."""
        self._host = host
        model, hints_only = host.served.model, spoken is not None
        spoken = spoken or Spoken(tokenizer, model.vocabulary_size, model.end_token_ids)
        self._tokenizer = spoken.files
        self.info = model_pb2.ModelInfo(
            name=name,
            architecture=model.architecture,
            vocabulary_size=spoken.vocabulary_size,
            tokenizer_fingerprint=spoken.files.fingerprint,
            context_length=host.served.context_length,
            end_token_ids=spoken.end_token_ids,
            sampling_defaults=defaults_message(model.sampling_defaults),
            length_defaults=lengths_message(model.length_defaults),
            dtype=model.dtype,
            device=str(model.device),
            max_draft_length=max_draft_length,
            wire_version=WIRE_VERSION,
            weights_fingerprint=f"{model.weights_fingerprint}{host.served.mark}{SAMPLING_VERSION:02x}",
            sampling_version=SAMPLING_VERSION,
            row_multiple=host.served.row_multiple,
            kv_token_count=host.served.kv_token_count,
            kv_page_size=host.served.page_size,
            processors=_processors_message(host.served.processors),
            step_times=[
                model_pb2.StepTime(token_count=count, time=duration(time)) for count, time in host.served.step_times
            ],
            caveats=host.served.caveats,
            hints_only=hints_only,
        )
        self.handles = Handles(host, self.info)
        self.telemetry = telemetry
        self.refused_versions = RefusedVersions()

    async def GetModelInfo(
        self, request: model_pb2.GetModelInfoRequest, context: Context
    ) -> model_pb2.GetModelInfoResponse:
        # 0: a person asks, or a release before wire versions.
        if request.wire_version and request.wire_version != WIRE_VERSION:
            error = WireVersionError(request.wire_version, WIRE_VERSION)
            self.refused_versions.log_once(context.peer(), request.wire_version, error)
            await abort(context, error)
        return model_pb2.GetModelInfoResponse(model=self.info)

    async def GetTokenizer(
        self, request: model_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        for name, data in self._tokenizer.files.items():
            digest = hashlib.sha256(data).hexdigest()
            for start in range(0, len(data), _CHUNK_BYTES):
                last = start + _CHUNK_BYTES >= len(data)
                chunk = data[start : start + _CHUNK_BYTES]
                yield model_pb2.GetTokenizerResponse(file_name=name, data=chunk, sha256=digest if last else None)

    async def GetLoad(self, request: model_pb2.GetLoadRequest, context: Context) -> model_pb2.GetLoadResponse:
        load = self._host.load
        return model_pb2.GetLoadResponse(
            load=model_pb2.Load(**{name: getattr(load, name) for name in model_pb2.Load.DESCRIPTOR.fields_by_name})
        )


def set_timing(message: model_pb2.ItemTiming, timing: JobTiming) -> None:
    """Write a job's timing into a message. Making each message and copying it would take several
    times as long."""
    message.forward_count, message.step_token_count = timing.forward_count, timing.step_token_count
    set_duration(message.queue, timing.queue)
    set_duration(message.forward, timing.forward)
    set_duration(message.total, timing.total)
    set_duration(message.prefill, timing.prefill)


def _processors_message(processors: Processors) -> model_pb2.Processors | None:
    if not processors.machine:
        return None
    return model_pb2.Processors(
        machine=processors.machine, numbers=sorted(processors.numbers), thread_count=processors.thread_count
    )
