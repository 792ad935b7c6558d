"""Settings of the orchestrator, by flag or environment variable."""

from __future__ import annotations

from typing import Literal

from platformdirs import user_state_path
from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from orchestrator.errors import StoreFormatError
from orchestrator.sessions.admission.demand import AdmissionSettings
from orchestrator.watching.turn_trace import Detail
from slipstream.rpc.connector import Connector, refuse_plaintext_token
from slipstream.structures.limits import StructureSettings
from slipstream.telemetry.logs import LogFormat
from slipstream.transport.certificates import TlsFiles, reloaded_channel_credentials
from slipstream.transport.reloading import FileError
from slipstream.transport.settings import ListenSettings
from slipstream.transport.tokens import reloaded_bearer


class OrchestratorSettings(StructureSettings, ListenSettings):
    """Keep the sessions and run the rounds. Each flag is also a SLIPSTREAM_ORCHESTRATOR_*
    variable."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_parse_args=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        extra="forbid",
        env_prefix="SLIPSTREAM_ORCHESTRATOR_",
        cli_prog_name="python -P -m orchestrator",
        cli_implicit_flags=True,
    )

    address: str = Field("127.0.0.1:50051", description="host:port to listen on. Port 0 picks a free port")
    verifier: str = Field(
        "127.0.0.1:50052",
        description="host:port of the verifier service. Several verifiers, separated by commas, share the sessions, and so "
        "do all addresses of one host name",
    )
    draft: str = Field(
        "127.0.0.1:50053",
        description="host:port of the draft service. Several drafts, separated by commas or addresses of one host name, "
        "share the sessions. Empty: no draft, plain decoding",
    )
    resolve_seconds: float = Field(
        10,
        gt=0,
        description="seconds between two lookups of the services' host names. While a service is away, names are looked up "
        "every second",
    )
    peer_tls_ca: str = Field(
        "",
        description="PEM file with certificate authorities. With it, verifiers, drafts and other orchestrator processes of "
        "the same store are reached by TLS, and have to show a certificate of one of these authorities. Empty: plaintext. "
        "This file and the next two are read again when they change, for new connections",
    )
    peer_tls_certificate: str = Field(
        "", description="PEM file with the certificate chain that the orchestrator shows to its peers"
    )
    peer_tls_key: str = Field("", description="PEM file with the key of --peer-tls-certificate")
    peer_tls_name: str = Field(
        "", description="host name in the peers' certificates, if it differs from the address they are reached at"
    )
    peer_token_file: str = Field(
        "",
        description="file with the token that the orchestrator shows to verifiers and drafts. It is read again when it "
        "changes",
    )
    draft_length: int | None = Field(
        None,
        ge=0,
        description="draft tokens that a step verifies, unless the request sets them. 0: no speculation. By default the "
        "verifier chooses the number for every step",
    )
    drafts_per_session: int = Field(
        1,
        ge=1,
        le=8,
        description="drafts that each session asks at once, as far as --draft names drafts of different weights. The first "
        "right hint counts. Each more takes another draft's time and memory",
    )
    process_count: int = Field(
        1,
        ge=1,
        le=64,
        description="number of processes that share the port, the connections and the sessions. Raise it when one "
        "processor core is fully used",
    )
    default_max_token_count: int | None = Field(
        None,
        ge=1,
        description="most tokens that a turn may generate, unless the request sets it. By default the value of the model's "
        "generation_config.json (max_new_tokens, max_length), or 512",
    )
    store: str = Field(
        "",
        description="where sessions are stored: the path of a SQLite file, postgresql://USER@HOST/NAME, or memory, which "
        "loses them at the end of the process. By default a file in the user's state folder",
    )
    session_lease_seconds: float = Field(
        5,
        gt=0,
        description="seconds without a sign of life after which other processes take over the sessions of a process. Raise "
        "it where processes pause for seconds; lower it for a faster takeover",
    )
    advertise: str = Field(
        "",
        description="host:port at which other processes of the same store reach this process. Needed where processes on "
        "other machines share the store. With --process-count, the next processes use the next ports. By default --address",
    )
    access: str = Field(
        "",
        description="TOML file that lists the callers, their tokens and their limits. Empty: every caller is served, and all "
        "callers share all sessions",
    )
    anyone_operates: bool = Field(
        False,
        description="without --access, let every caller add and remove drafts (slipstream swap). The orchestrator connects "
        "to the addresses that a caller adds. With --access, principals with operator = true may",
    )
    max_session_count: int = Field(
        4096, ge=1, description="most sessions in the store. The orchestrator refuses to create more"
    )
    max_running_turns: int | None = Field(
        None,
        ge=1,
        description="turns that each process runs at once, whether or not their KV fits into memory. By default the "
        "orchestrator measures how many turns the verifiers' steps and memory allow",
    )
    queue_seconds: float = Field(
        10,
        ge=0,
        description="most seconds that a turn waits for its admission permit. A turn that would wait longer is refused, and "
        "the error says when to retry",
    )
    session_ttl_seconds: float = Field(3600, gt=0, description="seconds without a turn after which a session expires")
    lease_seconds: float = Field(
        600,
        gt=0,
        description="seconds for which the services keep the KV cache of an idle session, if they allow as much",
    )
    draft_deadline_seconds: float = Field(
        2,
        gt=0,
        description="most seconds that a round of the ratio test waits for its proposal, and a step for a hint of a fixed "
        "length. After that it goes on without",
    )
    verifier_deadline_seconds: float = Field(
        10,
        gt=0,
        description="seconds after which a verifier that does not answer counts as away. Long prompts get more time",
    )
    verifier_patience_seconds: float = Field(
        30, gt=0, description="most seconds that a turn waits for a lost verifier before it fails"
    )
    drain_seconds: float = Field(30, ge=0, description="seconds that running turns have to end after SIGTERM")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe log lines that are written"
    )
    log_format: LogFormat = Field(
        "text", description="format of log lines: text for people, json (one object a line) for programs"
    )
    metrics_address: str = Field(
        "",
        description="host:port that serves /metrics to Prometheus. Empty: no metrics. With --process-count, each process "
        "uses the next port",
    )
    trace_detail: Detail = Field(
        Detail.FULL,
        description="spans to export if OTEL_EXPORTER_OTLP_ENDPOINT is set: turns only, turns and rounds, or also the "
        "requests of each round to its peers",
    )

    def connector(self) -> Connector:
        """Return what connects to peers and other orchestrators. FileError, PlaintextError."""
        files = TlsFiles(
            self.peer_tls_certificate,
            self.peer_tls_key,
            self.peer_tls_ca,
            flag="--peer-tls",
            authority_flag="--peer-tls-ca",
        )
        files.check()
        for name in ("certificate", "name"):
            if getattr(self, f"peer_tls_{name}") and not self.peer_tls_ca:
                raise FileError(
                    f"--peer-tls-ca is needed beside --peer-tls-{name}: without it, peers are reached in plaintext"
                )
        self.refuse_plaintext([*self.verifier_addresses, *self.draft_addresses])
        return Connector(
            reloaded_channel_credentials(files) if self.peer_tls_ca else None,
            reloaded_bearer("--peer-token-file", self.peer_token_file) if self.peer_token_file else None,
            self.peer_tls_name,
            self.insecure,
        )

    def refuse_plaintext(self, addresses: list[str]) -> None:
        """Raise PlaintextError if the peer token would leave this machine in plaintext."""
        if self.peer_token_file and not self.peer_tls_ca and not self.insecure:
            refuse_plaintext_token(addresses)

    @property
    def store_place(self) -> str:
        """Return where sessions are stored. StoreFormatError if --store is not set and this user
        has no home folder."""
        if self.store:
            return self.store
        try:
            return str(user_state_path("slipstream", appauthor=False) / "sessions.db")
        except RuntimeError as error:
            raise StoreFormatError(
                "this user has no home folder to store sessions in: set --store to a file or to memory, or set HOME or "
                "XDG_STATE_HOME"
            ) from error

    @property
    def admission(self) -> AdmissionSettings:
        """Return how many turns run, and how long others wait."""
        return AdmissionSettings(self.max_running_turns, self.queue_seconds, self.process_count)

    @property
    def verifier_addresses(self) -> list[str]:
        """Return the verifiers' addresses, each once."""
        return _listed(self.verifier)

    @property
    def draft_addresses(self) -> list[str]:
        """Return the drafts' addresses, each once."""
        return _listed(self.draft)

    @model_validator(mode="after")
    def _has_a_port_for_each_process(self) -> OrchestratorSettings:
        if self.process_count > 1 and self.advertise:
            digits, shared = self.advertise.rpartition(":")[2], self.address.rpartition(":")[2]
            if not digits.isdecimal():
                raise ValueError(f"advertise must be host:port, but is {self.advertise!r}")
            first, last = int(digits), int(digits) + self.process_count - 1
            if shared.isdecimal() and first <= int(shared) <= last:
                what = f"advertise covers the ports {first} to {last}, one for each process"
                raise ValueError(f"{what}: {shared} is the port that all processes share (--address)")
        return self

    @model_validator(mode="after")
    def _says_who_operates_once(self) -> OrchestratorSettings:
        if self.access and self.anyone_operates:
            raise ValueError("anyone_operates contradicts --access: its principals with operator = true operate")
        return self

    @field_validator("verifier")
    @classmethod
    def _has_a_verifier(cls, value: str) -> str:
        if not value.replace(",", "").strip():
            raise ValueError("must name at least one verifier as host:port")
        return value


def _listed(addresses: str) -> list[str]:
    return list(dict.fromkeys(address.strip() for address in addresses.split(",") if address.strip()))
