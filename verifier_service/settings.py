"""Settings of the verifier service."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from slipstream.hosting.settings import STOCK_ENGINES, ModelServiceSettings


class VerifierSettings(ModelServiceSettings):
    """Serve a target model, which decides every token. Each flag is also a SLIPSTREAM_VERIFIER_*
    variable."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_VERIFIER_", cli_prog_name="python -P -m verifier_service")

    address: str = Field("127.0.0.1:50052", description="host:port to listen on; port 0 picks a free port")
    heads: str = Field(
        "",
        description="folder with Medusa or EAGLE-3 heads of the target, as safetensors: they make hints inside this service. "
        "For --engine compiled, or torch on the cpu",
    )
    engine_address: str = Field(
        "", description="http://host:port of the stock engine's server, with --engine vllm or sglang"
    )
    engine_model: str = Field(
        "",
        description="name by which a vLLM server serves the model, if it serves several: an alias, or a LoRA adapter of the "
        "model. Empty: that of --model",
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
    collect: str = Field(
        "",
        description="folder that a share of the positions at which the target chooses is written to, with its 64 largest "
        "log-probabilities, to distil a draft from. It is made with mode 700, and refused if other users can reach it. "
        "Empty: nothing is collected",
    )
    collect_text: bool = Field(
        False,
        description="write token ids too, prompts included. Token ids are text. Without them no draft can be distilled",
    )
    collect_share: float = Field(
        0.05,
        gt=0,
        le=1,
        description="share of all sequences that are collected. A sequence is collected whole or not at all",
    )
    collect_mib: float = Field(
        1024, ge=16, description="most MiB of collected positions that are kept. The oldest are deleted first"
    )

    @model_validator(mode="after")
    def _collects_where_it_can(self) -> Self:
        if self.collect and self.engine in STOCK_ENGINES:
            raise ValueError(
                f"collect needs all of a row's logits, and --engine {self.engine} tells a few: leave --collect out"
            )
        if not self.collect and self.model_fields_set & {"collect_text", "collect_share", "collect_mib"}:
            raise ValueError("collect DIR is needed with --collect-text, --collect-share and --collect-mib")
        return self
