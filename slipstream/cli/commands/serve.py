"""``slipstream serve``: a model over HTTP and gRPC on this machine, until Ctrl-C."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from slipstream.cli.chosen_pair import ChosenPair, chosen_pair, rank_count
from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.flags import Given, flags_of, in_flags_words, refusal, remarks, takes
from slipstream.cli.gateway_process import GATEWAY, GatewayProcess
from slipstream.cli.listen_addresses import metrics_addresses, refuse_plaintext
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.cli.serve_flags import FLAGS
from slipstream.cli.serving import serving
from slipstream.cli.stock_engine import engine_fault, orchestrator_flags, start_seconds

_LOOK_SECONDS = 0.2
"""From one look at the services to the next. macOS cannot wait for a signal."""
_DTYPES = {"auto": "bfloat16", "bfloat16": "bfloat16", "float32": "float32", "float": "float32"}
_QUESTION = "What does os.path.join do?"


@takes(FLAGS)
def serve(
    positional: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="a model's directory, a hub id, a .gguf file, or 'embedded'; by default the pair in the package",
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Serve a model on this machine until Ctrl-C: OpenAI's HTTP API, a web chat, and gRPC.

    The pair in the package, sessions kept in memory only: slipstream serve --store memory

    Your own: slipstream serve models/big --speculative-model models/small --kv-memory-mib 4096

    A target that vLLM serves: slipstream serve models/big --engine vllm --engine-address URL

    It takes the flags of vllm serve. One that would change nothing here is accepted with a remark;
    one that asks for what is not here is refused, and the line says what would be right.
    """
    if why := refusal(FLAGS, given):
        fail(why)
    for remark in [*remarks(FLAGS, given), *_remarks_on_cpu(given)]:
        progress.print(remark, style="dim", markup=False, highlight=False, soft_wrap=True)
    try:
        pair = chosen_pair(positional, given)
        ranks = rank_count(given)
    except ValueError as error:
        fail(str(error))
    if pair.remark:
        progress.print(pair.remark, style="dim", markup=False, highlight=False, soft_wrap=True)
    if given["dtype"] not in _DTYPES:
        fail(f"--dtype {given['dtype']}: give one of {', '.join(_DTYPES)}")
    given = {**given, "num_speculative_tokens": pair.draft_length, "heads": pair.heads, "tensor_parallel_size": ranks}
    if fault := engine_fault(given):
        fail(fault)
    _serve(pair, given)


def _serve(pair: ChosenPair, given: Given) -> None:
    services = ["orchestrator", "verifier", *(["draft"] if pair.draft else [])]
    addresses = {name: given[f"{name}_address"] for name in services}
    gateway = "" if given["no_http"] else _host_port(given["host"], given["port"])
    metrics = metrics_addresses(given["metrics_address"] or "", services)
    listening = {f"--{name}-address": address for name, address in addresses.items()}
    with refusals(""):
        if not given["insecure"]:
            refuse_plaintext(listening)
            if not given["ssl_certfile"]:
                refuse_plaintext({"--host": gateway} if gateway else {}, "give --ssl-certfile and --ssl-keyfile")
    listening |= {"--port": gateway} if gateway else {}
    listening |= {f"--metrics-address of the {name}": address for name, address in metrics.items()}

    def flags(service: str) -> list[str]:
        passed = flags_of(service, FLAGS, given)
        return [*passed, "--metrics-address", metrics[service]] if service in metrics else passed

    settings = PairSettings(
        target=pair.target,
        draft=pair.draft,
        device=given["device"],
        dtype=_DTYPES[given["dtype"]],
        target_flags=flags("verifier"),
        draft_flags=flags("draft"),
        orchestrator_flags=[*flags("orchestrator"), *orchestrator_flags(given)],
        gateway_flags=flags(GATEWAY),
        environment={"HF_HUB_CACHE": given["download_dir"]} if given["download_dir"] else {},
        store="",
    )
    flag_names = (pair.target_flag, pair.draft_flag)
    timeout = start_seconds(given)
    with (
        _terminated_well(),
        serving(settings, listening, **addresses, gateway=gateway, model_flags=flag_names, timeout=timeout) as local,
    ):
        _show(local, metrics, given["ssl_certfile"])
        while all(service.process.poll() is None for service in local.services.values()):
            time.sleep(_LOOK_SECONDS)
        ended = next(s for s in local.services.values() if s.process.poll() is not None)
        fail(in_flags_words(ended.last_words(), FLAGS))


def _remarks_on_cpu(given: Given) -> list[str]:
    share = given["gpu_memory_utilization"]
    if share is None or given["device"] != "cpu":
        return []
    return [
        f"--gpu-memory-utilization {share} has no effect: on the cpu --kv-memory-mib sets the memory of the KV cache"
    ]


def _host_port(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


@contextmanager
def _terminated_well() -> Iterator[None]:
    """Exit with status 0 after SIGTERM, as the services do: they have been stopped as was asked."""
    try:
        yield
    except SystemExit as end:
        if end.code == 128 + signal.SIGTERM:
            raise SystemExit(0) from None
        raise


def _show(local: LocalServices, metrics: dict[str, str], certificate: str | None) -> None:
    for name, service in local.services.items():
        _say(f"{name:>12}  {service.address}  log {service.log}")
    for name, address in metrics.items():
        _say(f"{name:>12}  http://{address}/metrics")
    _say(f"{'gRPC':>12}  {local.orchestrator_address}")
    if local.gateway is not None:
        _say(f"{'HTTP':>12}  {local.gateway.url}/v1")
        _say(f"{'web chat':>12}  {local.gateway.url}/")
        _say(f"{'try':>12}  {_example(local.gateway, certificate)}")
    _say("ready; Ctrl-C stops all of them")


def _example(gateway: GatewayProcess, certificate: str | None) -> str:
    """Return a command that asks the gateway."""
    curl = f"curl --cacert {shlex.quote(certificate)}" if certificate else "curl"
    name = gateway.model_name()
    if not name:
        return f'{curl} {gateway.url}/v1/models -H "authorization: Bearer $SLIPSTREAM_TOKEN"'
    body = {"model": name, "messages": [{"role": "user", "content": _QUESTION}]}
    return f"{curl} {gateway.url}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"


def _say(text: str) -> None:
    progress.print(text, markup=False, highlight=False, soft_wrap=True)
