"""Every flag that ``slipstream serve`` knows: our own, and those of ``vllm serve``.

``--help``, the reference page and the tests come from this table. A flag that is not here is
refused by its name.
"""

from __future__ import annotations

from slipstream.cli.flags import Fate, Flag

_MODELS = "Models"
_ADDRESSES = "Addresses"
_SESSIONS = "Callers and sessions"
_ROOM = "Speed and memory"


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
        "draft tokens that each step waits for; by default the verifier chooses, which is faster",
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
    Flag("--device", "torch device of both models: cpu, cuda, cuda:1", "DEVICE", default="cpu", group=_MODELS),
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
)
"""Flags that have an effect."""


def _accepted(name: str, says: str, takes: str = "") -> Flag:
    return Flag(name, says, takes, Fate.ACCEPTED)


ACCEPTED = (
    _accepted("--max-model-len", "a session has the model's own context; --kv-memory-mib limits the memory", "COUNT"),
    _accepted("--gpu-memory-utilization", "--kv-memory-mib sets the memory of the KV cache", "FRACTION"),
    _accepted("--enable-prefix-caching", "sessions always share the KV of equal prefixes"),
    _accepted(
        "--no-enable-prefix-caching", "sessions always share the KV of equal prefixes, and no text changes by it"
    ),
    _accepted("--enable-chunked-prefill", "prompts are always read in chunks"),
    _accepted("--no-enable-chunked-prefill", "prompts are always read in chunks, and no text changes by it"),
    _accepted("--enforce-eager", "captured graphs change the speed alone"),
    _accepted("--enable-auto-tool-choice", "a chat with tools may call them, unless --tool-call-parser is off"),
    _accepted("--swap-space", "KV pages stay on the model's device", "GIB"),
    _accepted("--disable-log-requests", "prompts and answers are never logged"),
    _accepted("--no-enable-log-requests", "prompts and answers are never logged"),
    _accepted("--disable-log-stats", "slipstream top shows them only when it is asked"),
    _accepted("--disable-uvicorn-access-log", "a line for each request goes to the gateway's log file alone"),
)
"""vLLM's flags that would change nothing here."""


def _refused(name: str, says: str, takes: str = "TEXT", *, harmless: tuple[str, ...] = ()) -> Flag:
    return Flag(name, says, takes, Fate.REFUSED, harmless=harmless)


_OTHER_NODES = "start services on other nodes one by one (docs/guides/deploy.md)"

REFUSED = (
    _refused(
        "--api-key",
        "every user of this machine sees a command's arguments: give --access FILE, which slipstream token writes a line for",
        "KEY",
    ),
    _refused(
        "--seed",
        "a seed of the server would make a text depend on the requests before it: give each request its seed",
        "NUMBER",
    ),
    _refused(
        "--quantization",
        "quantised checkpoints are not served: give a quantised .gguf file as MODEL",
        "METHOD",
        harmless=("none", "gguf"),
    ),
    _refused("--tensor-parallel-size", "one device computes a model", "COUNT", harmless=("1",)),
    _refused("--pipeline-parallel-size", "one device computes a model", "COUNT", harmless=("1",)),
    _refused("--data-parallel-size", f"one verifier runs here: {_OTHER_NODES}", "COUNT", harmless=("1",)),
    _refused("--distributed-executor-backend", f"one verifier runs here: {_OTHER_NODES}", "NAME"),
    _refused("--cpu-offload-gb", "all weights stay on the model's device", "GIB", harmless=("0",)),
    _refused("--kv-cache-dtype", "the KV cache has the type of --dtype", "TYPE", harmless=("auto",)),
    _refused(
        "--load-format",
        "the model's files say their format: give a directory with safetensors, or a .gguf file",
        "FORMAT",
        harmless=("auto", "safetensors", "gguf"),
    ),
    _refused(
        "--revision",
        "a hub id means its main branch: give as MODEL the directory that slipstream pull REPO@REVISION prints",
        "NAME",
        harmless=("main",),
    ),
    _refused("--tokenizer", "the model's own tokenizer is used: put another one into its directory", "MODEL"),
    _refused("--tokenizer-mode", "the model's own tokenizer is used", "MODE", harmless=("auto", "hf")),
    _refused("--chat-template", "the model's own template is used: put another one into its directory", "FILE"),
    _refused(
        "--generation-config",
        "defaults come from the model's generation_config.json: change the file, or set them in requests",
        "PLACE",
        harmless=("auto",),
    ),
    _refused("--override-generation-config", "set the parameters in each request", "JSON"),
    _refused("--hf-token", "every user of this machine sees a command's arguments: put it into HF_TOKEN", "TOKEN"),
    _refused("--enable-lora", "adapters are not served: merge them into the weights", ""),
    _refused("--lora-modules", "adapters are not served: merge them into the weights", "NAME=PATH"),
    _refused("--limit-mm-per-prompt", "only text is served", "JSON"),
    _refused("--task", "only text is generated", "TASK", harmless=("auto", "generate")),
    _refused("--runner", "only text is generated", "RUNNER", harmless=("auto", "generate")),
    _refused("--root-path", "the API is at /v1: let a proxy in front of it change the paths", "PATH"),
    _refused("--allowed-origins", "pages of other origins may not call the API: let a proxy allow them", "JSON"),
    _refused("--ssl-ca-certs", "the HTTP API asks for no client certificates: use tokens (--access)", "FILE"),
    _refused("--config", "give the flags themselves", "FILE"),
)
"""vLLM's flags that ask for what is not here."""

FLAGS = (*OURS, *ACCEPTED, *REFUSED)
