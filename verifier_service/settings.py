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
    engine_address: str = Field(
        "", description="http://host:port of the stock engine's server, with --engine vllm or sglang"
    )
    engine_token_file: str = Field(
        "", description="file with the API key of the stock engine's server. It is read again when it changes"
    )
    engine_start_seconds: float = Field(
        1800, ge=0, description="seconds to wait at start for a stock engine that still loads its model"
    )
    engine_timeout_seconds: float = Field(
        120, gt=0, description="seconds that a stock engine may take for an answer, or for the next token of one"
    )
    engine_patience_seconds: float = Field(
        10,
        ge=0,
        description="seconds for which running turns wait for a stock engine that was lost. Then they wait in the "
        "orchestrator, or move to another verifier",
    )
