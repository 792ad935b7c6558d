"""Settings of the draft service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from slipstream.hosting.settings import ModelServiceSettings


class DraftSettings(ModelServiceSettings):
    """Serve a draft model, which proposes tokens. Each flag is also a SLIPSTREAM_DRAFT_*
    variable."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_DRAFT_", cli_prog_name="python -P -m draft_service")

    target_tokenizer: str = Field(
        "",
        description="the target's model directory, hub id or .gguf file, if its tokenizer may differ from the draft's. Then "
        "callers speak the target's tokens, and hints are translated by their text. Empty: the draft's own tokenizer is spoken",
    )
    address: str = Field("127.0.0.1:50053", description="host:port to listen on; port 0 picks a free port")
    quantize: Literal["none", "int8", "int4"] = Field(
        "none",
        description="bits to quantise plain weights to while torch loads them, by torchao: int8 anywhere, int4 on CUDA. none: "
        "weights stay as they are stored",
    )

    @property
    def bits_at_load(self) -> str:
        """Bits to quantise plain weights to. Empty: they stay as they are."""
        return "" if self.quantize == "none" else self.quantize
