"""Settings of the verifier service."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from slipstream.hosting.settings import ModelServiceSettings


class VerifierSettings(ModelServiceSettings):
    """Serve a target model, which decides every token. Each flag is also a SLIPSTREAM_VERIFIER_*
    variable."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_VERIFIER_", cli_prog_name="python -P -m verifier_service")

    address: str = Field("127.0.0.1:50052", description="host:port to listen on; port 0 picks a free port")
