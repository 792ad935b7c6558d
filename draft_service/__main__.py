"""Run a draft service: ``python -P -m draft_service --model DIRECTORY``."""

from __future__ import annotations

from slipstream.extras import require
from slipstream.garbage import leave_imports_alone
from slipstream.home import borrow_home

require("draft", "models")  # before anything imports what it brings
leave_imports_alone()
borrow_home()

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from draft_service.proposer import ProposeJob
from draft_service.service import DraftService
from slipstream.engine.host import EngineHost
from slipstream.hosting.model_service import ModelService
from slipstream.hosting.process import run_model_service
from slipstream.hosting.settings import ModelServiceSettings, read_settings
from slipstream.rpc.server import Server
from slipstream.wire.v1 import draft_pb2_grpc


class DraftSettings(ModelServiceSettings):
    """Hosts the draft model, which proposes tokens. Each flag is also a SLIPSTREAM_DRAFT_*
    variable."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_DRAFT_", cli_prog_name="python -P -m draft_service")

    address: str = Field("127.0.0.1:50053", description="host:port to listen on; port 0 takes a free one")


def _add(
    host: EngineHost[ProposeJob], settings: ModelServiceSettings, server: Server, model_service: ModelService
) -> None:
    service = DraftService(
        host,
        model_service.handles,
        model_service.watch,
        max_draft_length=settings.max_draft_length,
        draining=server.draining,
    )
    draft_pb2_grpc.add_DraftServiceServicer_to_server(service, server.later)


if __name__ == "__main__":
    run_model_service(
        read_settings(DraftSettings, "draft"),
        service_name="draft",
        rpc_service="slipstream.wire.v1.DraftService",
        role="draft",
        exact=False,
        profile_seconds=0.3,
        add_service=_add,
    )
