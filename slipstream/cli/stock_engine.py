"""A target that a server of its own computes, behind the verifier that ``slipstream serve``
starts."""

from __future__ import annotations

import math

from slipstream.cli.flags import Flag, Given
from slipstream.cli.service_process import START_SECONDS

STOCK_ENGINES = ("vllm", "sglang")
ENGINES = ("auto", "compiled", "torch", "llamacpp", *STOCK_ENGINES)
_OF_A_SERVER = ("address", "model", "token_file", "start_seconds", "timeout_seconds", "patience_seconds")
_SERVER_START_SECONDS = 1800.0
_PATIENCE_SECONDS = "900"
"""Seconds for which turns wait in the orchestrator: a stock engine takes minutes to start again,
and there is no other verifier."""

_ENGINE = "The engine of the target"

ENGINE_FLAGS = (
    Flag(
        "--engine",
        "what computes the target: compiled, torch, llamacpp, or the server at --engine-address: vllm, sglang; default: auto",
        "NAME",
        group=_ENGINE,
        settings={"verifier": "engine"},
    ),
    Flag(
        "--engine-address",
        "http:// or https:// address of a vLLM or SGLang server that serves MODEL already",
        "URL",
        group=_ENGINE,
        settings={"verifier": "engine-address"},
    ),
    Flag(
        "--engine-model",
        "name by which a vLLM server serves MODEL, if it serves several: an alias, or a LoRA adapter of it",
        "NAME",
        group=_ENGINE,
        settings={"verifier": "engine-model"},
    ),
    Flag(
        "--engine-token-file",
        "file with the API key of that server",
        "FILE",
        group=_ENGINE,
        settings={"verifier": "engine-token-file"},
    ),
    Flag(
        "--engine-start-seconds",
        "seconds to wait at start while that server loads its model; default: 1800",
        "SECONDS",
        group=_ENGINE,
        settings={"verifier": "engine-start-seconds"},
    ),
    Flag(
        "--engine-timeout-seconds",
        "seconds that server may take for an answer; default: 120",
        "SECONDS",
        group=_ENGINE,
        settings={"verifier": "engine-timeout-seconds"},
    ),
    Flag(
        "--engine-patience-seconds",
        "seconds for which running turns wait for that server; later they wait in the orchestrator; default: 10",
        "SECONDS",
        group=_ENGINE,
        settings={"verifier": "engine-patience-seconds"},
    ),
)
"""Flags of the engine and of its server."""


def engine_fault(given: Given) -> str:
    """Return what is wrong with the flags of the target's engine; empty if nothing is."""
    engine = given["engine"]
    if engine is not None and engine not in ENGINES:
        return f"--engine {engine}: give one of {', '.join(ENGINES)}"
    if not is_stock(given):
        for name in _OF_A_SERVER:
            if given[f"engine_{name}"] is not None:
                return f"--engine-{name.replace('_', '-')} is for a server: give --engine vllm or --engine sglang beside it"
        return ""
    if not given["engine_address"]:
        return f"--engine {engine} needs --engine-address: where {engine} serves, such as http://127.0.0.1:8100"
    if (given["tensor_parallel_size"] or "1") != "1":
        return f"--tensor-parallel-size divides the verifier's own engines: give it to {engine} itself"
    if _start_seconds(given) is None:
        return f"--engine-start-seconds {given['engine_start_seconds']}: give a number of seconds from 0"
    return ""


def is_stock(given: Given) -> bool:
    """Return True if a server of its own computes the target."""
    return given["engine"] in STOCK_ENGINES


def start_seconds(given: Given) -> float:
    """Return the longest time that the services may take to start."""
    return START_SECONDS + (_start_seconds(given) or 0.0 if is_stock(given) else 0.0)


def orchestrator_flags(given: Given) -> list[str]:
    """Return what the orchestrator is told about the engine."""
    return ["--verifier-patience-seconds", _PATIENCE_SECONDS] if is_stock(given) else []


def _start_seconds(given: Given) -> float | None:
    said = given["engine_start_seconds"]
    try:
        seconds = _SERVER_START_SECONDS if said is None else float(said)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
