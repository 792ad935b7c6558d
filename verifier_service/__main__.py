"""Run a verifier service: ``python -P -m verifier_service --model DIRECTORY``."""

from __future__ import annotations

from slipstream.extras import require
from slipstream.garbage import leave_imports_alone
from slipstream.home import borrow_home

require("verifier", "models")  # before anything imports what it brings
leave_imports_alone()
borrow_home()

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from slipstream.engine.host import EngineHost
from slipstream.hosting.model_service import ModelService
from slipstream.hosting.process import run_model_service
from slipstream.hosting.settings import ModelServiceSettings, read_settings
from slipstream.rpc.server import Server
from slipstream.wire.v1 import verifier_pb2_grpc
from verifier_service.service import VerifierService
from verifier_service.verifier import VerifyJob


class VerifierSettings(ModelServiceSettings):
    """Hosts the target model, which decides every token. Each flag is also a SLIPSTREAM_VERIFIER_*
    variable."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_VERIFIER_", cli_prog_name="python -P -m verifier_service")

    address: str = Field("127.0.0.1:50052", description="host:port to listen on; port 0 takes a free one")


def _add(
    host: EngineHost[VerifyJob], settings: ModelServiceSettings, server: Server, model_service: ModelService
) -> None:
    service = VerifierService(
        host,
        model_service.handles,
        model_service.watch,
        max_draft_length=settings.max_draft_length,
        draining=server.draining,
    )
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(service, server.later)


if __name__ == "__main__":
    run_model_service(
        read_settings(VerifierSettings, "verifier"),
        service_name="verifier",
        rpc_service="slipstream.wire.v1.VerifierService",
        role="target",
        exact=True,
        profile_seconds=1.5,
        add_service=_add,
    )
