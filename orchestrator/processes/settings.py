"""What the orchestrator can be told, by flag or environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path, user_state_path
from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from orchestrator.errors import StoreFormatError
from orchestrator.sessions.admission.admission import AdmissionSettings
from orchestrator.watching.turn_trace import Detail
from slipstream.rpc.connector import Connector, refuse_plaintext_token
from slipstream.structures.limits import StructureSettings
from slipstream.telemetry.logs import LogFormat
from slipstream.transport.certificates import TlsFiles, reloaded_channel_credentials
from slipstream.transport.reloading import FileError
from slipstream.transport.settings import ListenSettings
from slipstream.transport.tokens import reloaded_bearer


class OrchestratorSettings(StructureSettings, ListenSettings):
    """Keeps the sessions and runs the rounds. Each flag is also a SLIPSTREAM_ORCHESTRATOR_*
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

    address: str = Field("127.0.0.1:50051", description="host:port to listen on; port 0 takes a free one")
    verifier: str = Field(
        "127.0.0.1:50052",
        description="host:port of the verifier service; several, separated by commas, share the sessions, and so do all "
        "addresses of a host name",
    )
    draft: str = Field(
        "127.0.0.1:50053",
        description="host:port of the draft service; several, separated by commas or addresses of a host name, share the "
        "sessions; empty: none, plain decoding only",
    )
    resolve_seconds: float = Field(
        10, gt=0, description="how often host names are looked up; at once each second while a service is away"
    )
    peer_tls_ca: str = Field(
        "",
        description="PEM file with certificate authorities: verifiers, draft and other orchestrator processes of the same "
        "store are reached by TLS and have to show a certificate of one of them; empty: plaintext. As the next two read again "
        "where a connection is made after it has changed",
    )
    peer_tls_certificate: str = Field("", description="PEM file with the certificate chain that is shown to them")
    peer_tls_key: str = Field("", description="PEM file with that certificate's key")
    peer_tls_name: str = Field(
        "", description="name that their certificates are for, where that is not the address they are reached at"
    )
    peer_token_file: str = Field(
        "", description="file with the token to show to verifiers and draft. Read again when it changes"
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
    default_max_token_count: int | None = Field(
        None,
        ge=1,
        description="tokens a turn may generate unless a request says so; by default what the model's generation_config.json "
        "says (max_new_tokens, max_length), or else 512",
    )
    store: str = Field(
        "",
        description="where sessions are kept: a file's path (SQLite), postgresql://USER@HOST/NAME, or memory; left out: a file "
        "in the user's state folder",
    )
    session_lease_seconds: float = Field(
        5, gt=0, description="how long a process that keeps sessions may say nothing before others go on with its turns"
    )
    advertise: str = Field(
        "",
        description="host:port at which other processes of the same store reach this one; left out: --address. Several "
        "processes (--process-count) have a port each, this one and the next: needed where other machines share the store",
    )
    access: str = Field(
        "",
        description="file (TOML) that says who may ask, by which tokens, and how much each may have; empty: anybody may, "
        "and all sessions are everybody's",
    )
    max_session_count: int = Field(4096, ge=1, description="sessions kept in the store; one more is refused")
    max_running_turns: int | None = Field(
        None,
        ge=1,
        description="turns that each process runs at once, whatever memory for KV they take; left out: as many as steps and "
        "memory are measured to bear",
    )
    queue_seconds: float = Field(
        10,
        ge=0,
        description="how long a turn waits for a place in a burst; one that would wait longer is told when to come back",
    )
    session_ttl_seconds: float = Field(3600, gt=0, description="idle time after which a session expires")
    lease_seconds: float = Field(600, gt=0, description="lease to ask for on the services' KV caches")
    draft_deadline_seconds: float = Field(
        2, gt=0, description="longest wait for a proposal before a round goes without"
    )
    verifier_deadline_seconds: float = Field(
        10,
        gt=0,
        description="least time that a verification gets before its verifier, silent, counts as away; long prompts get more",
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

    def connector(self) -> Connector:
        """How peers and other orchestrators are reached. FileError, PlaintextError."""
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
                raise FileError(f"--peer-tls-ca is needed beside --peer-tls-{name}: it makes peers be reached by TLS")
        if self.peer_token_file and not self.peer_tls_ca and not self.insecure:
            refuse_plaintext_token([*self.verifier_addresses, *self.draft_addresses])
        return Connector(
            reloaded_channel_credentials(files) if self.peer_tls_ca else None,
            reloaded_bearer("--peer-token-file", self.peer_token_file) if self.peer_token_file else None,
            self.peer_tls_name,
            self.insecure,
        )

    @property
    def learnt_path(self) -> Path | None:
        """Where to keep what is learnt."""
        if self.learnt_directory is None:
            try:
                return user_cache_path("slipstream", appauthor=False) / "learnt"
            except RuntimeError:  # this user has no home folder
                return None
        return Path(self.learnt_directory) if self.learnt_directory else None

    @property
    def store_place(self) -> str:
        """Where sessions are kept. StoreFormatError if that is not said and this user has no home
        folder."""
        if self.store:
            return self.store
        try:
            return str(user_state_path("slipstream", appauthor=False) / "sessions.db")
        except RuntimeError as error:
            raise StoreFormatError(
                "this user has no home folder to keep sessions in: choose --store FILE, or memory to keep none, or set HOME or "
                "XDG_STATE_HOME"
            ) from error

    @property
    def admission(self) -> AdmissionSettings:
        """How many turns run, and how long others wait."""
        return AdmissionSettings(self.max_running_turns, self.queue_seconds, self.process_count)

    @property
    def verifier_addresses(self) -> list[str]:
        """The verifiers' addresses, each once."""
        return _listed(self.verifier)

    @property
    def draft_addresses(self) -> list[str]:
        """The drafts', likewise."""
        return _listed(self.draft)

    @model_validator(mode="after")
    def _has_a_port_for_each_process(self) -> OrchestratorSettings:
        if self.process_count > 1 and self.advertise:
            digits, shared = self.advertise.rpartition(":")[2], self.address.rpartition(":")[2]
            if not digits.isdecimal():
                raise ValueError(f"advertise must be host:port, but is {self.advertise!r}")
            first, last = int(digits), int(digits) + self.process_count - 1
            if shared.isdecimal() and first <= int(shared) <= last:
                what = f"advertise stands for the ports {first} to {last}, one for each process"
                raise ValueError(f"{what}: {shared} is the one that all share (--address)")
        return self

    @field_validator("verifier")
    @classmethod
    def _has_a_verifier(cls, value: str) -> str:
        if not value.replace(",", "").strip():
            raise ValueError("must name at least one verifier as host:port")
        return value


def _listed(addresses: str) -> list[str]:
    return list(dict.fromkeys(address.strip() for address in addresses.split(",") if address.strip()))
