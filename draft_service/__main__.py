"""Run a draft service: ``python -P -m draft_service --model DIRECTORY``."""

from __future__ import annotations

from slipstream.hosting.startup import prepare_imports

prepare_imports("draft")

from draft_service.service import DraftService
from draft_service.settings import DraftSettings
from draft_service.spoken import spoken_tokens
from slipstream.hosting.process import ServiceKind, run_model_service
from slipstream.wire.v1 import draft_pb2_grpc

DRAFT = ServiceKind(
    name="draft",
    module="draft_service",
    settings=DraftSettings,
    service=DraftService,
    add_to_server=draft_pb2_grpc.add_DraftServiceServicer_to_server,
    rpc_service="slipstream.wire.v1.DraftService",
    embedded_model="draft",
    exact=False,
    profile_seconds=0.3,
    spoken=spoken_tokens,
)

if __name__ == "__main__":
    run_model_service(DRAFT)
