"""What every service that hosts a model can be told, by flag or environment variable."""

from __future__ import annotations

import dataclasses
import sys
from typing import Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from slipstream.engine.checkpoint import Trust
from slipstream.engine.host import HostLimits
from slipstream.engine.schedule import BatchLimits
from slipstream.rpc.wire import MAX_DRAFT_LENGTH
from slipstream.structures.limits import StructureSettings
from slipstream.telemetry.logs import LogFormat
from slipstream.transport.listening import Listening
from slipstream.transport.settings import ListenSettings
from slipstream.transport.tokens import reloaded_bearer


class ModelServiceSettings(StructureSettings, ListenSettings):
    """Settings of a draft or verifier service. Read once, in ``__main__``."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_parse_args=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        extra="forbid",
        cli_exit_on_error=True,
        cli_implicit_flags=True,
        protected_namespaces=(),
    )

    model: str = Field(
        description="transformers model directory or hub id, or a .gguf file; 'embedded' for the pair in the package; "
        "'arithmetic:KEY=VALUE&...' for the paper model (see slipstream/engine/arithmetic.py)"
    )
    peer_token_file: str = Field(
        "",
        description="file with a token that callers of every method but health must show; empty: none is asked for. Read "
        "again when it changes",
    )
    allow_pickle: bool = Field(
        False,
        description="load pytorch_model.bin where there are no safetensors, by torch's unpickler for tensors alone "
        "(weights_only): any other pickle is refused all the same",
    )
    trust_remote_code: bool = Field(
        False,
        description="run Python files that come with the model and that its configuration names (auto_map): they may "
        "do whatever this service may",
    )
    device: str = Field("cpu", description="torch device: cpu, cuda, cuda:1")
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="type of the weights and of the KV cache; a .gguf file says its own"
    )
    engine: Literal["auto", "compiled", "torch", "llamacpp"] = Field(
        "auto",
        description="what computes: compiled serves Llama, Mistral, Qwen2 and Qwen3 on the cpu, several times as fast, of a "
        ".gguf file where its matrices are F32, BF16 or Q8_0; torch serves every checkpoint, llamacpp every .gguf file; auto "
        "takes compiled where it can",
    )
    threads: int = Field(0, ge=0, description="threads that compute and choose; 0 takes torch's own choice")
    kv_memory_mib: float = Field(512, gt=0, description="memory for KV pages in MiB, reserved at start")
    page_size: int = Field(
        16, ge=1, le=128, description="tokens a KV page holds; a divisor of 128. A .gguf file's holds a whole context"
    )
    max_draft_length: int = Field(
        64, ge=1, le=MAX_DRAFT_LENGTH, description="most proposal tokens an item may carry or ask for"
    )
    max_step_tokens: int = Field(512, ge=8, description="tokens in one forward, over all sequences")
    prefill_chunk: int = Field(256, ge=8, description="tokens of one prompt in one forward")
    queue_limit: int = Field(1024, ge=1, description="unfinished items; one more is refused")
    max_sequence_count: int = Field(
        8192, ge=1, description="open sequences; for one more an idle one of whoever holds most is ended"
    )
    default_lease_seconds: float = Field(600, gt=0, description="idle time after which a sequence's pages come back")
    max_lease_seconds: float = Field(3600, gt=0, description="longest lease a caller can get")
    peer_grace_seconds: float = Field(
        30, ge=0, description="time for which an orchestrator's idle sequences outlive its last stream"
    )
    drain_seconds: float = Field(10, ge=0, description="time that running calls get to end after SIGTERM")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least severe log line shown")
    log_format: LogFormat = Field("text", description="text for people, json for machines: one object a line")
    metrics_address: str = Field("", description="host:port where Prometheus finds /metrics; empty: nowhere")

    def listening(self) -> Listening:
        """What the server is to be told. FileError, PlaintextError."""
        listening = super().listening()
        if not self.peer_token_file:
            return listening
        return dataclasses.replace(listening, token=reloaded_bearer("--peer-token-file", self.peer_token_file))

    def trust(self) -> Trust:
        """What of the checkpoint is used that could do other things than compute."""
        return Trust(pickle=self.allow_pickle, code=self.trust_remote_code)

    def batch_limits(self) -> BatchLimits:
        """The model thread's part."""
        return BatchLimits(self.max_step_tokens, self.prefill_chunk, self.queue_limit)

    def host_limits(self) -> HostLimits:
        """The host's part."""
        return HostLimits(
            self.max_sequence_count,
            self.default_lease_seconds,
            self.max_lease_seconds,
            grace_seconds=self.peer_grace_seconds,
        )


SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def read_settings(kind: type[SettingsT], service_name: str) -> SettingsT:
    """The settings that flags and environment variables make. Exits with one readable line if any
    is wrong."""
    try:
        return kind()
    except ValidationError as error:
        sys.exit(f"{service_name}: {'; '.join(map(_sentence, error.errors()))}")


def _sentence(fault: ErrorDetails) -> str:
    flag = "--" + ".".join(map(str, fault["loc"])).replace("_", "-")
    if fault["type"] == "missing":
        return f"{flag} is needed; --help explains it"
    return f"{flag} {fault['msg'].removeprefix('Input ')}, but is {fault['input']!r}"
