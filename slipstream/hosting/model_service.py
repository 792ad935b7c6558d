"""ModelService: what draft and verifier services answer alike. Wire types and the engine host meet here."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from slipstream.engine.host import EngineHost
from slipstream.engine.job import JobTiming
from slipstream.errors import (
    FieldViolation,
    InvalidFieldsError,
    SlipstreamError,
    TokenizerMismatchError,
    WeightsMismatchError,
)
from slipstream.hosting.tokenizer_files import TokenizerFiles
from slipstream.rpc.sampling_wire import defaults_message
from slipstream.rpc.status import abort
from slipstream.rpc.wire import duration, seconds
from slipstream.v1 import model_pb2, model_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

OpenAs = Callable[[model_pb2.OpenSequenceRequest, str], None]
"""`ModelService.open_as`."""

_CHUNK_BYTES = 256 * 1024
_SHORTEST_NAME, _LONGEST_NAME = 16, 64


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Information, tokenizer, sequences and load of one hosted model."""

    def __init__(
        self,
        host: EngineHost[Any],
        tokenizer: TokenizerFiles,
        *,
        name: str,
        max_draft_length: int,
        step_times: Sequence[tuple[int, float]],
    ) -> None:
        self._host = host
        self._tokenizer = tokenizer
        model = host.engine.model
        self._info = model_pb2.ModelInfo(
            name=name,
            architecture=model.architecture,
            vocabulary_size=model.vocabulary_size,
            tokenizer_fingerprint=tokenizer.fingerprint,
            context_length=host.engine.context_length,
            end_token_ids=model.end_token_ids,
            sampling_defaults=defaults_message(model.sampling_defaults),
            dtype=model.dtype,
            device=str(model.device),
            max_draft_length=max_draft_length,
            weights_fingerprint=model.weights_fingerprint,
            step_times=[model_pb2.StepTime(token_count=count, time=duration(time)) for count, time in step_times],
        )

    async def GetModelInfo(
        self, request: model_pb2.GetModelInfoRequest, context: Context
    ) -> model_pb2.GetModelInfoResponse:
        return model_pb2.GetModelInfoResponse(model=self._info)

    async def GetTokenizer(
        self, request: model_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        for name, data in self._tokenizer.files.items():
            digest = hashlib.sha256(data).hexdigest()
            for start in range(0, len(data), _CHUNK_BYTES):
                last = start + _CHUNK_BYTES >= len(data)
                chunk = data[start : start + _CHUNK_BYTES]
                yield model_pb2.GetTokenizerResponse(file_name=name, data=chunk, sha256=digest if last else None)

    async def OpenSequence(
        self, request: model_pb2.OpenSequenceRequest, context: Context
    ) -> model_pb2.OpenSequenceResponse:
        try:
            handle, granted = self._host.open(self._lease(request))
        except SlipstreamError as error:
            await abort(context, error)
        return model_pb2.OpenSequenceResponse(handle=handle, lease=duration(granted))

    def open_as(self, request: model_pb2.OpenSequenceRequest, handle: str) -> None:
        """Open a handle under the caller's name for it, unless it is open.

        TokenizerMismatchError, WeightsMismatchError, InvalidFieldsError or SequenceLimitError.
        """
        if not _SHORTEST_NAME <= len(handle) <= _LONGEST_NAME:
            length = f"must have {_SHORTEST_NAME} to {_LONGEST_NAME} characters to be opened, but has {len(handle)}"
            raise InvalidFieldsError([FieldViolation("handle", length)])
        self._host.open_as(handle, self._lease(request))

    def _lease(self, request: model_pb2.OpenSequenceRequest) -> float | None:
        """The lease that is asked for, in seconds, once the caller's model has been compared with ours."""
        asked, own = request.tokenizer_fingerprint, self._tokenizer.fingerprint
        if asked and asked != own:
            raise TokenizerMismatchError(
                f"the caller's tokenizer is {asked}, but {self._info.name} has {own}", asked=asked, own=own
            )
        weights = self._info.weights_fingerprint
        if request.weights_fingerprint and request.weights_fingerprint != weights:
            raise WeightsMismatchError(
                f"the tokens come from weights {request.weights_fingerprint}, but {self._info.name} has {weights}",
                asked=request.weights_fingerprint,
                own=weights,
            )
        lease = seconds(request.lease) if request.HasField("lease") else None
        if lease is not None and lease <= 0:
            raise InvalidFieldsError([FieldViolation("lease", f"must be above 0 s, but is {lease:g} s")])
        return lease

    async def CloseSequence(
        self, request: model_pb2.CloseSequenceRequest, context: Context
    ) -> model_pb2.CloseSequenceResponse:
        self._host.close(request.handle)
        return model_pb2.CloseSequenceResponse()

    async def GetLoad(self, request: model_pb2.GetLoadRequest, context: Context) -> model_pb2.GetLoadResponse:
        load = self._host.load
        return model_pb2.GetLoadResponse(
            load=model_pb2.Load(**{name: getattr(load, name) for name in load.__dataclass_fields__})
        )


def timing_of(timing: JobTiming) -> model_pb2.ItemTiming:
    """A job's timing for the wire."""
    return model_pb2.ItemTiming(
        queue=duration(timing.queue),
        forward=duration(timing.forward),
        total=duration(timing.total),
        forward_count=timing.forward_count,
        step_token_count=timing.step_token_count,
        prefill=duration(timing.prefill),
    )
