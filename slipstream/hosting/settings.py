"""Settings of every service that hosts a model, by flag or environment variable."""

from __future__ import annotations

import dataclasses
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from slipstream.agreed import MAX_DRAFT_LENGTH
from slipstream.engine.checkpoint import Trust
from slipstream.engine.host import HostLimits
from slipstream.engine.schedule import BatchLimits
from slipstream.structures.limits import StructureSettings
from slipstream.telemetry.logs import LogFormat
from slipstream.transport.listening import Listening
from slipstream.transport.settings import ListenSettings
from slipstream.transport.tokens import reloaded_bearer

STOCK_ENGINES = ("vllm", "sglang")
"""Values of --engine that are servers of their own, behind a verifier."""


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
        description="model to serve: a transformers model directory, a hub id or a .gguf file. 'embedded' is the model pair "
        "in the package. 'arithmetic:KEY=VALUE&...' is a model that computes simple arithmetic, for tests (see "
        "slipstream/engine/arithmetic.py)"
    )
    peer_token_file: str = Field(
        "",
        description="file with a token that callers have to show for every method but health. Empty: no token is needed. The "
        "file is read again when it changes",
    )
    allow_pickle: bool = Field(
        False,
        description="load pytorch_model.bin if the model has no safetensors files. Only torch's unpickler for tensors "
        "(weights_only) reads it; other pickle files are refused",
    )
    trust_remote_code: bool = Field(
        False,
        description="run the Python files that come with the model and that its configuration names (auto_map). They can do "
        "everything that this service can do",
    )
    device: str = Field("cpu", description="torch device, such as cpu, cuda or cuda:1")
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16",
        description="type of the weights and of the KV cache. A .gguf file keeps its own types; those that "
        "no kernel reads, such as Q3_K, are dequantised to this one where compiled code serves them",
    )
    engine: Literal["auto", "compiled", "torch", "llamacpp", "vllm", "sglang"] = Field(
        "auto",
        description="engine that computes the model. compiled is the fastest on the cpu: it serves Llama, Mistral, Qwen2 and "
        "Qwen3, as checkpoints and as .gguf files. torch serves every checkpoint, llamacpp other .gguf files. "
        "auto takes compiled where it can. vllm and sglang, for a verifier only, are servers at --engine-address: --model then "
        "names the model whose tokenizer and config are read here",
    )
    tensor_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="processes (ranks) that share the model, each on a GPU of its own or on its part of the cores. This one "
        "starts the others, unless torchrun has set RANK and WORLD_SIZE. A text is promised for a given number",
    )
    rank_patience_seconds: float = Field(
        10.0,
        ge=1,
        description="seconds after which a rank that does not answer is frozen, and the group ends. Loading does not count",
    )
    threads: int = Field(
        0,
        ge=0,
        description="threads that compute and choose tokens, of each rank. 0: one for each core, shared out to the ranks of "
        "this machine, or OMP_NUM_THREADS. Lower it where draft and verifier share the processors",
    )
    kv_memory_mib: float = Field(
        512,
        gt=0,
        description="MiB of memory for the KV cache of each rank, reserved at start. Raise it for more or longer sessions",
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of a CUDA device's memory to use, in place of --kv-memory-mib: the KV cache gets what is left of "
        "it after loading. Other processes on the device count too. The cpu ignores it",
    )
    page_size: int = Field(
        16,
        ge=1,
        le=128,
        description="tokens in a KV page; a divisor of 128. llama.cpp ignores it: its page holds a whole context",
    )
    max_draft_length: int = Field(
        64, ge=1, le=MAX_DRAFT_LENGTH, description="most proposal tokens that an item may carry or ask for"
    )
    max_step_tokens: int = Field(
        512,
        ge=8,
        description="most tokens in one forward, over all sequences. Raise it for throughput, lower it for latency",
    )
    prefill_chunk: int = Field(256, ge=8, description="most tokens of one prompt in one forward")
    queue_limit: int = Field(1024, ge=1, description="most unfinished items. The service refuses more")
    max_sequence_count: int = Field(
        8192,
        ge=1,
        description="most open sequences. To open one more, the service ends an idle sequence of the caller that holds most",
    )
    default_lease_seconds: float = Field(
        600,
        gt=0,
        description="idle seconds after which a sequence loses its KV pages, unless the caller asks for a lease",
    )
    max_lease_seconds: float = Field(3600, gt=0, description="longest lease in seconds that a caller can get")
    peer_grace_seconds: float = Field(
        30, ge=0, description="seconds that an orchestrator's idle sequences stay after its last stream has ended"
    )
    drain_seconds: float = Field(10, ge=0, description="seconds that running calls have to end after SIGTERM")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe log lines that are written"
    )
    log_format: LogFormat = Field(
        "text", description="format of log lines: text for people, json (one object a line) for programs"
    )
    metrics_address: str = Field("", description="host:port that serves /metrics to Prometheus. Empty: no metrics")

    @model_validator(mode="after")
    def _one_size_of_kv(self) -> Self:
        if self.gpu_memory_utilization is not None and "kv_memory_mib" in self.model_fields_set:
            raise ValueError("gpu-memory-utilization and --kv-memory-mib both size the KV cache: give one of them")
        return self

    def listening(self) -> Listening:
        """Return how the server has to listen. FileError, PlaintextError."""
        listening = super().listening()
        if not self.peer_token_file:
            return listening
        return dataclasses.replace(listening, token=reloaded_bearer("--peer-token-file", self.peer_token_file))

    def trust(self) -> Trust:
        """Return which parts of a checkpoint that can run code are trusted."""
        return Trust(pickle=self.allow_pickle, code=self.trust_remote_code)

    @property
    def bits_at_load(self) -> str:
        """Bits to quantise plain weights to while they are loaded. Empty: they stay as they are, as
        a target's have to."""
        return ""

    def batch_limits(self) -> BatchLimits:
        """Return the limits of the model thread."""
        return BatchLimits(self.max_step_tokens, self.prefill_chunk, self.queue_limit)

    def host_limits(self) -> HostLimits:
        """Return the limits of the engine host."""
        return HostLimits(
            self.max_sequence_count,
            self.default_lease_seconds,
            self.max_lease_seconds,
            grace_seconds=self.peer_grace_seconds,
        )
