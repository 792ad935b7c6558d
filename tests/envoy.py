"""Envoy as a process, with a configuration of deploy/ as it would run but for its addresses."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from proving.certificates import Authority
from slipstream.cli.local import free_address
from tests.documents import ROOT
from tests.listening_process import listening_process


def _socket_address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _configuration(file: str, orchestrator: str, address: str, authority: Authority) -> dict[str, Any]:
    """Return a file of deploy/envoy with what its CHANGE marks leave to the operator."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "envoy" / file).read_text())
    issued = authority.issue("envoy")
    config["admin"]["address"] = _socket_address(free_address())
    (listener,), (cluster,) = config["static_resources"]["listeners"], config["static_resources"]["clusters"]
    listener["address"] = _socket_address(address)
    shown = listener["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    shown["tls_certificates"] = [
        {
            "certificate_chain": {"filename": str(issued.certificate)},
            "private_key": {"filename": str(issued.key)},
        }
    ]
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] = _socket_address(orchestrator)
    trusted = cluster["transport_socket"]["typed_config"]
    trusted["sni"] = "localhost"
    validation = trusted["common_tls_context"]["validation_context"]
    validation["trusted_ca"] = {"filename": authority.file}
    validation["match_typed_subject_alt_names"][0]["matcher"] = {"exact": "localhost"}
    return config


@contextlib.contextmanager
def envoy_process(name: str, orchestrator: str, authority: Authority, folder: Path) -> Iterator[str]:
    """Run Envoy with a file of deploy/envoy in front of an orchestrator with TLS. Gives its
    address, whose certificate is the authority's too."""
    program = shutil.which("envoy", path=str(Path(sys.executable).parent))
    assert program is not None, "no Envoy is installed beside Python: make .venv/dev brings it"
    address = free_address()
    file, log = folder / name, folder / f"{name}.log"
    file.write_text(yaml.safe_dump(_configuration(name, orchestrator, address, authority)))
    command = [program, "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
    with listening_process(command, address, log, folder):
        yield address
