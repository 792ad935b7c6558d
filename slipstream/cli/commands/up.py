"""``slipstream up``: the services on this machine, until Ctrl-C."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from slipstream.cli.commands.options import Device, Draft, Dtype, Target
from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.listen_addresses import refuse_plaintext
from slipstream.cli.local import PairSettings
from slipstream.cli.service_flags import ServiceFlags, metrics_addresses
from slipstream.cli.serving import serving

_LOOK_SECONDS = 0.2
"""From one look at the services that ``up`` has started to the next. macOS cannot wait for a
signal."""


def up(
    target: Target = "embedded",
    draft: Draft = "embedded",
    device: Device = "cpu",
    dtype: Dtype = "bfloat16",
    orchestrator_address: Annotated[str, typer.Option(help="host:port to listen on")] = "127.0.0.1:50051",
    verifier_address: Annotated[str, typer.Option(help="host:port to listen on")] = "127.0.0.1:50052",
    draft_address: Annotated[str, typer.Option(help="host:port to listen on")] = "127.0.0.1:50053",
    store: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="where sessions are kept: a SQLite file, postgresql://..., or memory; default: a file in your state folder",
        ),
    ] = "",
    access: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="TOML file of callers and tokens (see slipstream token); default: anyone may call",
        ),
    ] = "",
    kv_memory_mib: Annotated[
        str,
        typer.Option(
            metavar="MIB",
            help="MiB for the KV cache of each model: more for more or longer sessions; default: 512",
        ),
    ] = "",
    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="/metrics of the orchestrator; verifier and draft take the next two ports",
        ),
    ] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="allow addresses that are not on loopback, without TLS")
    ] = False,
) -> None:
    """Run the three services here until Ctrl-C.

    The models in the package, sessions kept in memory only: slipstream up --store memory

    Your own models: slipstream up --target models/big --draft models/small --kv-memory-mib 4096
    """
    chosen = {"orchestrator": orchestrator_address, "verifier": verifier_address, "draft": draft_address}
    if not draft:
        del chosen["draft"]
    metrics = metrics_addresses(metrics_address, chosen)
    listening = {f"--{name}-address": address for name, address in chosen.items()}
    with refusals(""):
        if not insecure:
            refuse_plaintext(listening)
    flags = ServiceFlags(insecure, {"store": store, "access": access, "kv_memory_mib": kv_memory_mib}, metrics)
    settings = PairSettings(
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        target_flags=flags.of("verifier"),
        draft_flags=flags.of("draft"),
        orchestrator_flags=flags.of("orchestrator"),
        store="",
    )
    listening |= {f"--metrics-address of the {name}": address for name, address in metrics.items()}
    with serving(settings, listening, **chosen) as local:
        for name, service in local.services.items():
            progress.print(f"{name:>12}  {service.address}  log {service.log}", soft_wrap=True)
        for name, address in metrics.items():
            progress.print(f"{name:>12}  http://{address}/metrics", soft_wrap=True)
        progress.print("ready; Ctrl-C stops all three")
        while all(service.process.poll() is None for service in local.services.values()):
            time.sleep(_LOOK_SECONDS)
        ended = next(s for s in local.services.values() if s.process.poll() is not None)
        fail(ended.last_words())
