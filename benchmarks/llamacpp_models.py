"""The embedded pair for llama.cpp, and llama.cpp's own server.

The pair is converted once to GGUF, in bfloat16 unless another type is named. The server is the one
in xllamacpp's wheel, or one built for this machine, which decodes faster.
"""

from __future__ import annotations

import atexit
import http.client
import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.weights import digest_of
from slipstream.cli.local import free_address
from slipstream.engine.llamacpp.libllama import load

_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""llama.cpp's names of a layer's tensors, by a Llama model's names."""

_CONTEXT = 2048


def converted(
    directory: Path, target: Path, draft: Path, target_weights: str = "BF16", draft_weights: str = "BF16"
) -> tuple[Path, Path]:
    """Return both models as GGUF files with weights of these types, made in ``directory`` if they
    are missing."""

    def file(model: Path, weights: str) -> Path:
        path = directory / f"{digest_of(model)}-{weights.lower()}.gguf"
        return path if path.exists() else convert(model, path, weights)

    return file(target, target_weights), file(draft, draft_weights)


def convert(model: Path, file: Path, weights: str = "BF16") -> Path:
    """Write a Llama model and its byte-level tokenizer as a GGUF ``file``. Its ``weights`` are of
    one of GGUF's types, such as BF16, Q4_0 or Q6_K, or the mixture Q4_K_M."""
    import gguf

    config = json.loads((model / "config.json").read_text())
    file.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(file_type(weights))
    add_tokenizer(writer, model, config)
    for path in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            _add_tensor(writer, name, tensor, config, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_tokenizer(writer: Any, model: Path, config: dict[str, Any]) -> None:
    """Give a ``writer`` a model's byte-level tokenizer and chat template."""
    import gguf

    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokens = [f"[UNUSED {token}]" for token in range(config["vocab_size"])]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for text, token in tokenizer["model"]["vocab"].items():
        tokens[token], types[token] = text, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((model / "chat_template.jinja").read_text())


def file_type(weights: str) -> Any:
    """Return the number of a type in a file's general.file_type."""
    import gguf

    names = "ALL_F32" if weights == "F32" else f"MOSTLY_{weights}", f"MOSTLY_{weights}_M"
    return next(each for each in gguf.LlamaFileType if each.name in names)


def _type_in(weights: str, name: str, layer_count: int) -> Any:
    """Return a matrix's type. Q4_K_M has six bits in the embedding, and in the values and down
    projections of the layers that llama.cpp chooses."""
    import gguf

    if weights != "Q4_K_M":
        return gguf.GGMLQuantizationType[weights]
    kind = gguf.GGMLQuantizationType.Q4_K
    if not name.startswith("blk."):
        return gguf.GGMLQuantizationType.Q6_K
    _, number, part, _ = name.split(".")
    layer, eighth = int(number), layer_count // 8
    wants_more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
    return gguf.GGMLQuantizationType.Q6_K if wants_more and part in ("attn_v", "ffn_down") else kind


def _add_tensor(writer: Any, name: str, tensor: torch.Tensor, config: dict[str, Any], weights: str) -> None:
    if name.startswith("model.layers."):
        _, _, layer, part = name.removesuffix(".weight").split(".", 3)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):  # llama.cpp turns neighbours, not halves, of a head
            tensor = tensor.view(-1, 2, config["head_dim"] // 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        name = f"blk.{layer}.{_TENSORS[part]}.weight"
    else:
        known = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        name = known[name.removesuffix(".weight")] + ".weight"
    if tensor.ndim == 1:
        writer.add_tensor(name, tensor.float().numpy())
        return
    kind = _type_in(weights, name, config["num_hidden_layers"])
    writer.add_tensor(name, quantised(tensor.float().contiguous().numpy(), kind), raw_dtype=kind)


def quantised(values: np.ndarray, kind: Any) -> np.ndarray:
    """Return a matrix ``[outputs, inputs]`` in a type of GGUF's, by llama.cpp itself where gguf
    cannot quantise it."""
    import gguf

    try:
        return np.asarray(gguf.quants.quantize(values, kind))
    except NotImplementedError:
        return _by_llamacpp(np.ascontiguousarray(values, np.float32), kind)


def _by_llamacpp(values: np.ndarray, kind: Any) -> np.ndarray:
    import gguf

    outputs, inputs = values.shape
    size, byte_count = gguf.GGML_QUANT_SIZES[kind]
    rows = np.empty((outputs, inputs // size * byte_count), np.uint8)
    quantise = load().ggml_quantize_chunk
    quantise.argtypes = [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]
    quantise.restype = c_size_t
    written = quantise(kind, values.ctypes.data, rows.ctypes.data, 0, outputs, inputs, None)
    if written != rows.nbytes:
        raise ValueError(f"llama.cpp wrote {written} bytes of {kind.name} instead of {rows.nbytes}")
    return rows


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one llama.cpp. ``target`` and ``draft`` are GGUF files; the draft proposes up to
    ``draft_length`` tokens a round."""

    target: Path
    draft: Path | None
    draft_length: int
    temperature: float
    max_tokens: int
    streams: int
    server: Path | None = None
    """Path of a llama-server built elsewhere; without one, the wheel's own is used."""


def generator(settings: Settings) -> Callable[[Sequence[list[int]]], int]:
    """Return a function that generates after all prompts, ``streams`` at a time, and returns the
    number of tokens. llama.cpp's server has a separate process, because its threads and torch's
    would compete. The wheel's server is called there without a socket, another one over HTTP."""
    if settings.server is not None:
        return _by_http(settings)
    ours, its = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=_serve, args=(settings, its), daemon=True).start()

    def generate(prompts: Sequence[list[int]]) -> int:
        ours.send(prompts)
        count: int | Exception = ours.recv()
        if isinstance(count, Exception):
            raise count
        return count

    return generate


def _serve(settings: Settings, asked: Connection) -> None:
    """Answer prompts with counts of tokens until the connection closes."""
    server = _server(settings)
    request = _request(settings)
    pool = ThreadPoolExecutor(settings.streams)

    def generate(prompt: list[int]) -> int:
        answer = server.handle_completions({**request, "prompt": prompt})
        if "usage" not in answer:
            raise RuntimeError(f"llama.cpp did not answer: {answer}")
        count: int = answer["usage"]["completion_tokens"]
        return count

    while True:
        try:
            prompts = asked.recv()
        except EOFError:
            return
        try:
            asked.send(sum(pool.map(generate, prompts)))
        except RuntimeError as error:
            asked.send(error)


def _request(settings: Settings) -> dict[str, Any]:
    sampling: dict[str, Any] = {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"]}
    if settings.temperature:
        sampling = {"temperature": settings.temperature, "samplers": ["temperature"]}
    return {"n_predict": settings.max_tokens, "seed": 0, "cache_prompt": False, **sampling}


def _by_http(settings: Settings) -> Callable[[Sequence[list[int]]], int]:
    host, _, port = free_address().rpartition(":")
    threads = str(os.cpu_count() or 1)
    command = [str(settings.server), "--model", str(settings.target), "--host", host, "--port", port]
    command += ["--ctx-size", str(_CONTEXT * settings.streams), "--parallel", str(settings.streams), "--no-webui"]
    command += ["--threads", threads, "--threads-batch", threads, "--fit", "off"]
    if settings.draft is not None:
        command += ["--spec-type", "draft-simple", "--spec-draft-model", str(settings.draft)]
        command += ["--spec-draft-n-max", str(settings.draft_length)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(server.kill)

    def asked(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(host, int(port))
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said: dict[str, Any] = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ConnectionError(f"llama-server answered {answer.status}: {said}")
        return said

    while True:
        try:
            asked("GET", "/health")
            break
        except OSError as error:
            if server.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {server.returncode}") from error
            time.sleep(0.1)
    request = _request(settings)
    pool = ThreadPoolExecutor(settings.streams)

    def generate(prompt: list[int]) -> int:
        count: int = asked("POST", "/completion", {**request, "prompt": prompt})["tokens_predicted"]
        return count

    return lambda prompts: sum(pool.map(generate, prompts))


def _server(settings: Settings) -> Any:
    import xllamacpp

    parameters: Any = xllamacpp.CommonParams()
    parameters.model.path = str(settings.target)
    parameters.n_ctx = _CONTEXT * settings.streams
    parameters.n_parallel = settings.streams
    parameters.fit_params = False
    parameters.verbosity = -1
    speculative = parameters.speculative.draft
    for cpu in (parameters.cpuparams, parameters.cpuparams_batch, speculative.cpuparams, speculative.cpuparams_batch):
        cpu.n_threads = os.cpu_count() or 1
    if settings.draft is not None:
        parameters.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.mparams.path = str(settings.draft)
        speculative.n_max = settings.draft_length
    return xllamacpp.Server(parameters)
