"""What every service that hosts a model can be told, by flag or environment variable."""

from __future__ import annotations

import sys
from typing import Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from slipstream.engine.host import HostLimits
from slipstream.engine.schedule import BatchLimits
from slipstream.telemetry.logs import LogFormat


class ModelServiceSettings(BaseSettings):
    """Settings of a draft or verifier service. Read once, in ``__main__``."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_parse_args=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        extra="forbid",
        cli_exit_on_error=True,
        protected_namespaces=(),
    )

    model: str = Field(
        description="transformers model directory or hub id; 'embedded' for the pair in the package; "
        "'arithmetic:KEY=VALUE&...' for the paper model (see slipstream/engine/arithmetic.py)"
    )
    address: str = Field(description="host:port to listen on; port 0 takes a free one")
    device: str = Field("cpu", description="torch device: cpu, cuda, cuda:1")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="type of the weights and of the KV cache")
    threads: int = Field(0, ge=0, description="torch threads; 0 takes torch's own choice")
    kv_memory_mib: float = Field(512, gt=0, description="memory for KV pages in MiB, reserved at start")
    page_size: int = Field(16, ge=1, le=128, description="tokens a KV page holds; a divisor of 128")
    max_draft_length: int = Field(64, ge=1, description="most proposal tokens an item may carry or ask for")
    max_step_tokens: int = Field(512, ge=8, description="tokens in one forward, over all sequences")
    prefill_chunk: int = Field(256, ge=8, description="tokens of one prompt in one forward")
    queue_limit: int = Field(1024, ge=1, description="unfinished items; one more is refused")
    max_sequence_count: int = Field(8192, ge=1, description="open sequences; one more is refused")
    default_lease_seconds: float = Field(600, gt=0, description="idle time after which a sequence's pages come back")
    max_lease_seconds: float = Field(3600, gt=0, description="longest lease a caller can get")
    drain_seconds: float = Field(10, ge=0, description="time that running calls get to end after SIGTERM")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least severe log line shown")
    log_format: LogFormat = Field("text", description="text for people, json for machines: one object a line")
    metrics_address: str = Field("", description="host:port where Prometheus finds /metrics; empty: nowhere")

    def batch_limits(self) -> BatchLimits:
        """The model thread's part."""
        return BatchLimits(self.max_step_tokens, self.prefill_chunk, self.queue_limit)

    def host_limits(self) -> HostLimits:
        """The host's part."""
        return HostLimits(self.max_sequence_count, self.default_lease_seconds, self.max_lease_seconds)


SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def read_settings(kind: type[SettingsT], service_name: str) -> SettingsT:
    """The settings that flags and environment variables make. Exits with one readable line if any is wrong."""
    try:
        return kind()
    except ValidationError as error:
        sys.exit(f"{service_name}: {'; '.join(map(_sentence, error.errors()))}")


def _sentence(fault: ErrorDetails) -> str:
    flag = "--" + ".".join(map(str, fault["loc"])).replace("_", "-")
    if fault["type"] == "missing":
        return f"{flag} is needed; --help explains it"
    return f"{flag} {fault['msg'].removeprefix('Input ')}, but is {fault['input']!r}"
