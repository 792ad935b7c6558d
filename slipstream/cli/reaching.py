"""Options that commands share to reach an orchestrator, and the clients made of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Annotated, Any

import grpc
import typer

from slipstream.client import Client
from slipstream.client.identity import call_metadata
from slipstream.transport.certificates import TlsFiles, channel_credentials
from slipstream.transport.reloading import FileError, read_bytes
from slipstream.transport.tokens import bearer

_TOKEN_VARIABLE = "SLIPSTREAM_TOKEN"
"""Environment variable of the token. It is not an option, because other users of a machine see
options."""


@dataclass(frozen=True, slots=True)
class Server:
    """An orchestrator, and how the options say that it is reached. FileError and PlaintextError
    where they cannot be right."""

    address: str
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    token_file: str = ""

    def client(self, **options: Any) -> Client:
        """A client with these further options of its own."""
        return Client(self.address, credentials=self.credentials(), token=self.token(), **options)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a channel; None is plaintext."""
        files = TlsFiles(self.tls_certificate, self.tls_key, self.tls_ca)
        files.check()
        if self.tls or self.tls_ca:
            return channel_credentials(files)
        if files.certificate:
            raise FileError(
                "--tls-ca, or --tls for what public authorities certify, is needed beside --tls-certificate"
            )
        return None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of every call, for code that has no client."""
        return call_metadata(self.address, self.credentials(), (), self.token())

    def at(self, address: str) -> Server:
        """Return another server that is reached with the same options."""
        return replace(self, address=address)

    def token(self) -> str | None:
        """Return the token to show; None if there is none. FileError."""
        token, source = os.environ.get(_TOKEN_VARIABLE, ""), _TOKEN_VARIABLE
        if self.token_file:
            token = read_bytes("--token-file", self.token_file).decode(errors="replace").strip()
            source = f"--token-file {self.token_file}"
        elif not token:
            return None
        try:
            bearer(token)
        except ValueError as error:
            raise FileError(f"{source} has to hold a token: {error}") from error
        return token


def _options(
    address: Annotated[str, typer.Option(help="host:port of the orchestrator")] = "127.0.0.1:50051",
    tls: Annotated[bool, typer.Option("--tls", help="reach it by TLS, trusting the public authorities")] = False,
    tls_ca: Annotated[str, typer.Option(metavar="FILE", help="by TLS, trusting the authorities in this PEM file")] = "",
    tls_certificate: Annotated[str, typer.Option(metavar="FILE", help="client certificate to show, in PEM")] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="that certificate's key, in PEM")] = "",
    token_file: Annotated[str, typer.Option(metavar="FILE", help="token to show; else $SLIPSTREAM_TOKEN")] = "",
) -> None: ...


_SHARED = tuple(inspect.signature(_options, eval_str=True).parameters.values())


def with_server(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of a Server in the place of its argument ``server``."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "server"]

    @wraps(command)
    def run(**given: Any) -> None:
        command(server=Server(**{option.name: given.pop(option.name) for option in _SHARED}), **given)

    run.__signature__ = signature.replace(parameters=[*own, *_SHARED])  # type: ignore[attr-defined]
    return run
