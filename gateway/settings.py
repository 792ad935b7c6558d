"""Settings of the gateway, by flag or environment variable."""

from __future__ import annotations

from typing import Literal

import grpc
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.reading import ReasoningParser
from gateway.tool_formats import ToolCallParser
from slipstream.transport.addresses import PlaintextError, stays_here
from slipstream.transport.certificates import TlsFiles, channel_credentials
from slipstream.transport.reloading import FileError


class GatewaySettings(BaseSettings):
    """Serve OpenAI's HTTP API in front of an orchestrator. Each flag is also a
    SLIPSTREAM_GATEWAY_* variable."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_parse_args=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        extra="forbid",
        env_prefix="SLIPSTREAM_GATEWAY_",
        cli_prog_name="python -P -m gateway",
        cli_implicit_flags=True,
    )

    orchestrator: str = Field(
        "127.0.0.1:50051",
        description="host:port of the orchestrator. A name that has several addresses, or ipv4:IP:PORT,IP:PORT, stands for "
        "orchestrators that share a store: requests go to all of them in turn, and away from one that is lost",
    )
    address: str = Field("127.0.0.1:8000", description="host:port to listen on. Port 0 picks a free port")
    allowed_hosts: str = Field(
        "",
        description="names, with commas between them, by which requests may come, besides localhost and loopback addresses: "
        "those of the gateway or of a proxy in front. Empty: on loopback no others, elsewhere all. any: all, also those that "
        "a hostile website lets point here",
    )
    model_name: str = Field(
        "",
        description="name that requests give as model, and that /v1/models lists. By default the last part of the target's "
        "name",
    )
    tool_call_parser: ToolCallParser = Field(
        "auto",
        description="format in which the model writes calls of tools: that of Hermes and Qwen, or that of Llama 3. auto: the "
        "one of its chat template, or else hermes. off: calls stay in the text",
    )
    reasoning_parser: ReasoningParser = Field(
        "off",
        description="how chats split reasoning off an answer. qwen3: the answer begins with <think>. deepseek_r1: reasoning "
        "comes first even without <think>, which the prompt may have",
    )
    tls_certificate: str = Field(
        "",
        description="PEM file with this service's certificate chain. Empty: plaintext HTTP. It is read again when it changes",
    )
    tls_key: str = Field("", description="PEM file with the key of --tls-certificate")
    orchestrator_tls: bool = Field(
        False, description="reach the orchestrator by TLS, trusting the public certificate authorities"
    )
    orchestrator_tls_ca: str = Field(
        "", description="PEM file with certificate authorities: reach the orchestrator by TLS, trusting these"
    )
    orchestrator_tls_certificate: str = Field(
        "", description="PEM file with the certificate chain that the gateway shows to the orchestrator"
    )
    orchestrator_tls_key: str = Field("", description="PEM file with the key of --orchestrator-tls-certificate")
    insecure: bool = Field(
        False,
        description="allow plaintext to and from addresses that are not loopback. Use it only on a private network: anyone "
        "on it can read the traffic, tokens included",
    )
    max_body_mib: int = Field(8, ge=1, description="most MiB of a request's body. A larger one gets status 413")
    max_header_kib: int = Field(32, ge=1, description="most KiB of a request's line and headers together")
    idle_seconds: int = Field(
        60,
        ge=1,
        description="seconds after which a connection is closed if the next request's header is not there, no byte of its body "
        "comes, or its caller takes no byte of the answer. A whole body may take five times as long",
    )
    drain_seconds: int = Field(30, ge=0, description="seconds that running requests have to end after SIGTERM")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe log lines that are written. INFO has a line for each request"
    )

    def tls_files(self) -> TlsFiles:
        """Return the files of the gateway's own certificate. FileError if one is missing or wrong,
        PlaintextError if others could read the traffic."""
        files = TlsFiles(self.tls_certificate, self.tls_key)
        files.check()
        files.pair()
        if not self.tls_certificate and not self.insecure and not stays_here(self.address):
            raise PlaintextError(
                f"--address {self.address} is not on loopback, and anyone on the network could read plaintext: give "
                "--tls-certificate and --tls-key, or --insecure on a private network"
            )
        return files

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of the channel to the orchestrator; None is plaintext. FileError,
        PlaintextError."""
        files = TlsFiles(
            self.orchestrator_tls_certificate,
            self.orchestrator_tls_key,
            self.orchestrator_tls_ca,
            flag="--orchestrator-tls",
            authority_flag="--orchestrator-tls-ca",
        )
        files.check()
        if self.orchestrator_tls or self.orchestrator_tls_ca:
            return channel_credentials(files)
        if files.certificate:
            raise FileError("--orchestrator-tls-ca is needed beside --orchestrator-tls-certificate")
        if not self.insecure and not stays_here(self.orchestrator):
            raise PlaintextError(
                f"--orchestrator {self.orchestrator} is not on loopback, and anyone on the network could read plaintext: give "
                "--orchestrator-tls-ca, or --insecure on a private network"
            )
        return None
