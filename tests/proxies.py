"""nginx and Caddy as processes, with their files of deploy/ as they would run but for addresses."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from proving.certificates import Authority
from slipstream.cli.local import free_address
from tests.documents import ROOT
from tests.listening_process import listening_process

_NGINX = """daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
access_log off;
{temporary}
{content}
}}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def proxy_command(
    kind: str, gateway: str, orchestrator: str, address: str, authority: Authority, folder: Path
) -> list[str]:
    """Return the command that runs a proxy; its file is written into a folder. Skips the test where
    the proxy is not installed."""
    program = shutil.which(kind)
    if program is None:
        pytest.skip(f"{kind} is not installed: apt-get install {kind} brings it")
    issued = authority.issue(kind)
    port = address.rpartition(":")[2]
    if kind == "nginx":
        changes = {
            "127.0.0.1:8000": gateway,
            "127.0.0.1:50051": orchestrator,
            "listen 443": f"listen {address}",
            "/etc/nginx/tls/tls.crt": str(issued.certificate),
            "/etc/nginx/tls/tls.key": str(issued.key),
        }
        content = _changed(ROOT / "deploy" / "nginx" / "slipstream.conf", changes)
        temporary = " ".join(f"{each}_temp_path {folder}/{each};" for each in _TEMPORARY)
        file = folder / "nginx.conf"
        file.write_text(_NGINX.format(folder=folder, temporary=temporary, content=content))
        return [program, "-p", str(folder), "-c", str(file)]
    changes = {
        "127.0.0.1:8000": gateway,
        "127.0.0.1:50051": orchestrator,
        "slipstream.example {": f"https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {issued.certificate} {issued.key}",
        "{\n\t# A stream": "{\n\tadmin off\n\tauto_https disable_redirects\n\t# A stream",
    }
    (folder / "Caddyfile").write_text(_changed(ROOT / "deploy" / "caddy" / "Caddyfile", changes))
    return [program, "run", "--config", str(folder / "Caddyfile")]


def _changed(path: Path, changes: Mapping[str, str]) -> str:
    text = path.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{path} has {old} {text.count(old)} times"
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def proxy_process(kind: str, gateway: str, orchestrator: str, authority: Authority, folder: Path) -> Iterator[str]:
    """Run a proxy with its file of deploy/. Gives its address, whose certificate is the
    authority's."""
    address = free_address()
    command = proxy_command(kind, gateway, orchestrator, address, authority, folder)
    with listening_process(command, address, folder / f"{kind}.log", folder):
        yield address
