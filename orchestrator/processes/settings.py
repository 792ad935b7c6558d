"""What the orchestrator can be told, by flag or environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from orchestrator.watching.turn_trace import Detail
from slipstream.telemetry.logs import LogFormat


class OrchestratorSettings(BaseSettings):
    """Keeps the sessions and runs the rounds. Each flag is also a SLIPSTREAM_ORCHESTRATOR_* variable."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_parse_args=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        extra="forbid",
        env_prefix="SLIPSTREAM_ORCHESTRATOR_",
        cli_prog_name="python -m orchestrator",
        cli_implicit_flags=True,
    )

    address: str = Field("127.0.0.1:50051", description="host:port to listen on; port 0 takes a free one")
    verifier: str = Field(
        "127.0.0.1:50052",
        description="host:port of the verifier service; several, separated by commas, share the sessions",
    )
    draft: str = Field(
        "127.0.0.1:50053", description="host:port of the draft service; empty: none, plain decoding only"
    )
    draft_length: int | None = Field(
        None,
        ge=0,
        description="draft tokens a round unless a request says otherwise; 0: off; left out: chosen round by round",
    )
    draft_sharpening: float | None = Field(
        None, gt=0, le=1, description="factor on the draft's temperature; left out: learnt for each temperature"
    )
    share_ngrams: bool = Field(
        False,
        description="propose what other sessions said too; no text changes, but its speed may tell that others said it",
    )
    process_count: int = Field(
        1,
        ge=1,
        le=64,
        description="processes that share the port, the connections and the sessions: when one core is not enough",
    )
    learnt_directory: str | None = Field(
        None,
        description="where to keep between starts how fast this machine and pair are and how often the draft is right; empty: "
        "nowhere; left out: the user's cache",
    )
    default_max_token_count: int = Field(512, ge=1, description="tokens a turn may generate unless a request says so")
    max_session_count: int = Field(
        4096, ge=1, description="sessions kept; one more is refused; several processes keep a share each"
    )
    session_ttl_seconds: float = Field(3600, gt=0, description="idle time after which a session expires")
    lease_seconds: float = Field(600, gt=0, description="lease to ask for on the services' KV caches")
    draft_deadline_seconds: float = Field(
        2, gt=0, description="longest wait for a proposal before a round goes without"
    )
    verifier_patience_seconds: float = Field(30, gt=0, description="how long a turn waits for a lost verifier")
    drain_seconds: float = Field(30, ge=0, description="time that running turns get to end after SIGTERM")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least severe log line shown")
    log_format: LogFormat = Field("text", description="text for people, json for machines: one object a line")
    metrics_address: str = Field(
        "",
        description="host:port where Prometheus finds /metrics; empty: nowhere; of several processes each has the next port",
    )
    trace_detail: Detail = Field(
        Detail.FULL,
        description="what is traced where OTEL_EXPORTER_OTLP_ENDPOINT is set: each turn, its rounds too, or also what each "
        "round asked of the peers",
    )

    @property
    def learnt_path(self) -> Path | None:
        """Where to keep what is learnt."""
        if self.learnt_directory is None:
            return user_cache_path("slipstream", appauthor=False) / "learnt"
        return Path(self.learnt_directory) if self.learnt_directory else None

    @property
    def verifier_addresses(self) -> list[str]:
        """The verifiers' addresses, each once."""
        return list(dict.fromkeys(address.strip() for address in self.verifier.split(",") if address.strip()))

    @field_validator("verifier")
    @classmethod
    def _has_a_verifier(cls, value: str) -> str:
        if not value.replace(",", "").strip():
            raise ValueError("must name at least one verifier as host:port")
        return value
