"""Every flag that ``slipstream serve`` knows: those that have an effect, and vLLM's others.

``--help``, the reference page and the tests come from this table. A flag that is not in it is
refused by its name.
"""

from __future__ import annotations

from slipstream.cli.flags import Flag
from slipstream.cli.stock_engine import ENGINE_FLAGS
from slipstream.cli.vllm_flags import ACCEPTED, REFUSED

_MODELS = "Models"
_ADDRESSES = "Addresses"
_SESSIONS = "Callers and sessions"
_ROOM = "Speed and memory"
_COLLECTING = "Collecting for slipstream distill"


def _both(setting: str) -> dict[str, str]:
    return {"verifier": setting, "draft": setting}


OURS = (
    Flag("--model", "the same as MODEL", "MODEL", group=_MODELS),
    Flag("--target", "the same as MODEL", "MODEL", group=_MODELS),
    Flag(
        "--speculative-model",
        "draft model, likewise; by default the embedded draft for the embedded model, and else none",
        "MODEL",
        group=_MODELS,
    ),
    Flag("--draft", "the same as --speculative-model; empty for none", "MODEL", group=_MODELS),
    Flag(
        "--num-speculative-tokens",
        "draft tokens that each step waits for; by default, and without a draft, the verifier chooses, which is faster",
        "COUNT",
        group=_MODELS,
        settings={"orchestrator": "draft-length"},
    ),
    Flag(
        "--speculative-config",
        """the two together: '{"model": "DRAFT", "num_speculative_tokens": COUNT}'""",
        "JSON",
        group=_MODELS,
    ),
    Flag(
        "--heads",
        "folder with Medusa or EAGLE-3 heads of the target, which make hints inside the verifier",
        "DIR",
        group=_MODELS,
        settings={"verifier": "heads"},
    ),
    Flag("--device", "torch device of both models: cpu, cuda, cuda:1", "DEVICE", default="cpu", group=_MODELS),
    Flag(
        "--tensor-parallel-size",
        "processes (ranks) that share the target, each with a GPU of its own or its part of the cores; default: 1",
        "COUNT",
        group=_MODELS,
        settings={"verifier": "tensor-parallel-size"},
        short="-tp",
    ),
    Flag("--target-tensor-parallel-size", "the same as --tensor-parallel-size", "COUNT", group=_MODELS),
    Flag(
        "--draft-tensor-parallel-size",
        "ranks that share the draft; default: 1",
        "COUNT",
        group=_MODELS,
        settings={"draft": "tensor-parallel-size"},
    ),
    Flag(
        "--draft-quantize",
        "bits to quantise the draft to while torch loads it: int8, or int4 on CUDA; default: none",
        "BITS",
        group=_MODELS,
        settings={"draft": "quantize"},
    ),
    Flag("--dtype", "auto (bfloat16), bfloat16, float32 or float", "TYPE", default="auto", group=_MODELS),
    Flag(
        "--served-model-name",
        "name that requests give as model; by default the last part of MODEL",
        "NAME",
        group=_MODELS,
        settings={"gateway": "model-name"},
    ),
    Flag("--download-dir", "folder that hub ids are downloaded to; by default the hub's cache", "DIR", group=_MODELS),
    Flag(
        "--trust-remote-code",
        "run the Python files that come with a model",
        "",
        group=_MODELS,
        settings=_both("trust-remote-code"),
    ),
    Flag(
        "--tool-call-parser",
        "format in which the model writes calls of tools: hermes, llama3_json or off; by default as its chat template does",
        "NAME",
        group=_MODELS,
        settings={"gateway": "tool-call-parser"},
    ),
    Flag(
        "--reasoning-parser",
        "how chats split reasoning off an answer: qwen3 or deepseek_r1; by default not at all",
        "NAME",
        group=_MODELS,
        settings={"gateway": "reasoning-parser"},
    ),
    *ENGINE_FLAGS,
    Flag("--host", "host that the HTTP API listens on", "HOST", default="127.0.0.1", group=_ADDRESSES),
    Flag("--port", "port that the HTTP API listens on", "PORT", default="8000", group=_ADDRESSES),
    Flag("--no-http", "serve gRPC alone", "", group=_ADDRESSES),
    Flag(
        "--orchestrator-address",
        "address of the gRPC API",
        "HOST:PORT",
        default="127.0.0.1:50051",
        group=_ADDRESSES,
    ),
    Flag("--verifier-address", "address of the verifier", "HOST:PORT", default="127.0.0.1:50052", group=_ADDRESSES),
    Flag("--draft-address", "address of the draft service", "HOST:PORT", default="127.0.0.1:50053", group=_ADDRESSES),
    Flag(
        "--metrics-address",
        "/metrics of the orchestrator; verifier and draft take the next two ports",
        "HOST:PORT",
        group=_ADDRESSES,
    ),
    Flag(
        "--ssl-certfile",
        "PEM file with the certificate chain of the HTTP API, which is HTTPS then",
        "FILE",
        group=_ADDRESSES,
        settings={"gateway": "tls-certificate"},
    ),
    Flag(
        "--ssl-keyfile",
        "PEM file with the key of --ssl-certfile",
        "FILE",
        group=_ADDRESSES,
        settings={"gateway": "tls-key"},
    ),
    Flag(
        "--insecure",
        "allow addresses that are not on loopback, without TLS",
        "",
        group=_ADDRESSES,
        settings=dict.fromkeys(("orchestrator", "verifier", "draft", "gateway"), "insecure"),
    ),
    Flag(
        "--access",
        "TOML file of callers and tokens (see slipstream token); default: anyone may call",
        "FILE",
        group=_SESSIONS,
        settings={"orchestrator": "access"},
    ),
    Flag(
        "--anyone-operates",
        "without --access, let every caller replace the draft (see slipstream swap)",
        "",
        group=_SESSIONS,
        settings={"orchestrator": "anyone-operates"},
    ),
    Flag(
        "--store",
        "where sessions are kept: a SQLite file, postgresql://..., or memory; default: a file in your state folder",
        "PLACE",
        group=_SESSIONS,
        settings={"orchestrator": "store"},
    ),
    Flag(
        "--kv-memory-mib",
        "MiB for the KV cache of each model: more for more or longer sessions; default: 512",
        "MIB",
        group=_ROOM,
        settings=_both("kv-memory-mib"),
    ),
    Flag(
        "--gpu-memory-utilization",
        "share of the GPU to use: the target's KV cache gets what is left of it after loading, in place of --kv-memory-mib",
        "FRACTION",
        group=_ROOM,
        settings={"verifier": "gpu-memory-utilization"},
    ),
    Flag(
        "--max-num-seqs",
        "most turns that run at once, others wait; by default as many as steps and memory allow",
        "COUNT",
        group=_ROOM,
        settings={"orchestrator": "max-running-turns"},
    ),
    Flag(
        "--max-num-batched-tokens",
        "most tokens in one forward; more for throughput, fewer for latency; default: 512",
        "COUNT",
        group=_ROOM,
        settings=_both("max-step-tokens"),
    ),
    Flag(
        "--block-size",
        "tokens in a KV page, a divisor of 128; default: 16",
        "COUNT",
        group=_ROOM,
        settings=_both("page-size"),
    ),
    Flag(
        "--collect",
        "private folder for a share of the target's choices, with its 64 largest log-probabilities",
        "DIR",
        group=_COLLECTING,
        settings={"verifier": "collect"},
    ),
    Flag(
        "--collect-text",
        "write token ids too, prompts included: text. slipstream distill needs them",
        "",
        group=_COLLECTING,
        settings={"verifier": "collect-text"},
    ),
    Flag(
        "--collect-share",
        "share of all sequences that are collected; default: 0.05",
        "FRACTION",
        group=_COLLECTING,
        settings={"verifier": "collect-share"},
    ),
    Flag(
        "--collect-mib",
        "most MiB that are kept, the oldest go first; default: 1024",
        "MIB",
        group=_COLLECTING,
        settings={"verifier": "collect-mib"},
    ),
)
"""Flags that have an effect."""

FLAGS = (*OURS, *ACCEPTED, *REFUSED)
