"""Flags of ``vllm serve`` that have no effect here, or are refused. Those that have one are in
`serve_flags`."""

from __future__ import annotations

from slipstream.cli.flags import Fate, Flag


def _accepted(name: str, says: str, takes: str = "") -> Flag:
    return Flag(name, says, takes, Fate.ACCEPTED)


ACCEPTED = (
    _accepted("--max-model-len", "a session has the model's own context; --kv-memory-mib limits the memory", "COUNT"),
    _accepted("--enable-prefix-caching", "sessions always share the KV of equal prefixes"),
    _accepted(
        "--no-enable-prefix-caching", "sessions always share the KV of equal prefixes, and no text changes by it"
    ),
    _accepted("--enable-chunked-prefill", "prompts are always read in chunks"),
    _accepted("--no-enable-chunked-prefill", "prompts are always read in chunks, and no text changes by it"),
    _accepted("--enforce-eager", "captured graphs change the speed alone"),
    _accepted("--enable-auto-tool-choice", "a chat with tools may call them, unless --tool-call-parser is off"),
    _accepted("--scheduling-policy", "turns wait by the priority that requests and callers have", "POLICY"),
    _accepted("--async-scheduling", "the verifier chooses when it prepares a step; no text changes by it"),
    _accepted(
        "--compilation-config", "the engine chooses what it compiles and captures; no text changes by it", "JSON"
    ),
    _accepted("--cuda-graph-sizes", "the engine chooses what it captures; no text changes by it", "COUNT"),
    _accepted("--max-seq-len-to-capture", "the engine chooses what it captures; no text changes by it", "COUNT"),
    _accepted("--disable-custom-all-reduce", "ranks always sum in the order of their numbers"),
    _accepted("--enable-prompt-tokens-details", "usage always has them"),
    _accepted("--enable-request-id-headers", "every answer has the header x-request-id"),
    _accepted("--enable-ssl-refresh", "the files of a certificate are always read again when they change"),
    _accepted("--swap-space", "KV pages stay on the model's device", "GIB"),
    _accepted("--disable-log-requests", "prompts and answers are never logged"),
    _accepted("--no-enable-log-requests", "prompts and answers are never logged"),
    _accepted("--max-log-len", "prompts and answers are never logged", "COUNT"),
    _accepted("--disable-log-stats", "slipstream top shows them only when it is asked"),
    _accepted("--disable-uvicorn-access-log", "a line for each request goes to the gateway's log file alone"),
)
"""vLLM's flags that would change nothing here."""


def _refused(
    name: str, says: str, takes: str = "TEXT", *, harmless: tuple[str, ...] = (), short: str | None = None
) -> Flag:
    return Flag(name, says, takes, Fate.REFUSED, harmless=harmless, short=short)


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
        short="-q",
    ),
    _refused(
        "--pipeline-parallel-size",
        "layers are not shared out: --tensor-parallel-size shares out each layer",
        "COUNT",
        harmless=("1",),
        short="-pp",
    ),
    _refused("--data-parallel-size", f"one verifier runs here: {_OTHER_NODES}", "COUNT", harmless=("1",), short="-dp"),
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
    _refused("--default-chat-template-kwargs", "give chat_template_kwargs in each request", "JSON"),
    _refused("--chat-template-content-format", "a template reads text", "FORMAT", harmless=("auto", "string")),
    _refused("--response-role", "the model answers as the assistant", "ROLE", harmless=("assistant",)),
    _refused("--max-logprobs", "a request may ask for 20 likeliest tokens", "COUNT", harmless=("20",)),
    _refused("--logprobs-mode", "log-probabilities are the model's own", "MODE", harmless=("raw_logprobs",)),
    _refused("--hf-overrides", "the model's config.json decides: change the file", "JSON"),
    _refused("--hf-config-path", "the model's own config.json decides", "PATH"),
    _refused("--rope-scaling", "the model's config.json decides: change the file", "JSON"),
    _refused("--rope-theta", "the model's config.json decides: change the file", "NUMBER"),
    _refused("--disable-sliding-window", "a window that config.json has is followed, or the text would change", ""),
    _refused("--model-impl", "the engine is chosen by the model", "NAME", harmless=("auto",)),
    _refused("--config-format", "a directory has config.json", "FORMAT", harmless=("auto", "hf")),
    _refused("--skip-tokenizer-init", "every model is served with its tokenizer; prompts may be token ids", ""),
    _refused("--code-revision", "give as MODEL the directory that slipstream pull REPO@REVISION prints", "NAME"),
    _refused("--tokenizer-revision", "the tokenizer comes with the model", "NAME"),
    _refused(
        "--guided-decoding-backend",
        "llguidance compiles all structures",
        "NAME",
        harmless=("auto", "guidance"),
    ),
    _refused("--structured-outputs-config", "llguidance compiles all structures", "JSON"),
    _refused("--tool-parser-plugin", "--tool-call-parser names the formats that are read", "FILE"),
    _refused("--kv-transfer-config", "KV stays on its verifier: another one computes it again", "JSON"),
    _refused(
        "--enable-expert-parallel", "experts are not shared out: --tensor-parallel-size shares out each layer", ""
    ),
    _refused("--enable-sleep-mode", "a service serves until it is stopped", ""),
    _refused("--hf-token", "every user of this machine sees a command's arguments: put it into HF_TOKEN", "TOKEN"),
    _refused("--enable-lora", "adapters are not served: merge them into the weights", ""),
    _refused("--lora-modules", "adapters are not served: merge them into the weights", "NAME=PATH"),
    _refused("--limit-mm-per-prompt", "only text is served", "JSON"),
    _refused("--task", "only text is generated", "TASK", harmless=("auto", "generate")),
    _refused("--runner", "only text is generated", "RUNNER", harmless=("auto", "generate")),
    _refused("--root-path", "the API is at /v1: let a proxy in front of it change the paths", "PATH"),
    _refused("--allowed-origins", "pages of other origins may not call the API: let a proxy allow them", "JSON"),
    _refused("--allowed-methods", "pages of other origins may not call the API: let a proxy allow them", "JSON"),
    _refused("--allowed-headers", "pages of other origins may not call the API: let a proxy allow them", "JSON"),
    _refused("--allow-credentials", "pages of other origins may not call the API: let a proxy allow them", ""),
    _refused("--middleware", "the gateway runs no foreign code: put a proxy in front of it", "PATH"),
    _refused("--uds", "HTTP listens on --host and --port", "PATH"),
    _refused("--api-server-count", "one gateway runs here: start more beside it", "COUNT", harmless=("1",)),
    _refused("--enable-log-requests", "prompts and answers are never logged; traces show turns", ""),
    _refused("--enable-log-outputs", "prompts and answers are never logged; traces show turns", ""),
    _refused("--enable-force-include-usage", "a stream has usage where stream_options asks for it", ""),
    _refused("--uvicorn-log-level", "set SLIPSTREAM_GATEWAY_LOG_LEVEL", "LEVEL", harmless=("info",)),
    _refused("--log-config-file", "set SLIPSTREAM_GATEWAY_LOG_LEVEL, and the services' own variables", "FILE"),
    _refused("--disable-fastapi-docs", "/openapi.json is always served, and a proxy can leave it out", ""),
    _refused("--otlp-traces-endpoint", "set OTEL_EXPORTER_OTLP_ENDPOINT", "URL"),
    _refused("--h11-max-incomplete-event-size", "set SLIPSTREAM_GATEWAY_MAX_HEADER_KIB", "BYTES"),
    _refused("--headless", _OTHER_NODES, ""),
    _refused("--ssl-cert-reqs", "the HTTP API asks for no client certificates", "NUMBER", harmless=("0",)),
    _refused("--ssl-ciphers", "TLS has the ciphers of this machine's OpenSSL", "NAMES"),
    _refused("--ssl-ca-certs", "the HTTP API asks for no client certificates: use tokens (--access)", "FILE"),
    _refused("--config", "give the flags themselves", "FILE"),
)
"""vLLM's flags that ask for what is not here."""
