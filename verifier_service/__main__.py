"""Run a verifier service: ``python -P -m verifier_service --model DIRECTORY``."""

from __future__ import annotations

from slipstream.hosting.startup import prepare_imports

prepare_imports("verifier")

from slipstream.hosting.process import ServiceKind, run_model_service
from slipstream.wire.v1 import verifier_pb2_grpc
from verifier_service.collecting import collecting
from verifier_service.heads import heads_of
from verifier_service.service import VerifierService
from verifier_service.settings import VerifierSettings
from verifier_service.stock import stock_host

VERIFIER = ServiceKind(
    name="verifier",
    module="verifier_service",
    settings=VerifierSettings,
    service=VerifierService,
    add_to_server=verifier_pb2_grpc.add_VerifierServiceServicer_to_server,
    rpc_service="slipstream.wire.v1.VerifierService",
    embedded_model="target",
    exact=True,
    profile_seconds=1.5,
    stock_host=stock_host,
    collecting=collecting,
    heads=heads_of,
)

if __name__ == "__main__":
    run_model_service(VERIFIER)
