"""A plain decoder as an onnxruntime program: what most small models are, in a dozen fused operations a layer.

RMS norms before attention and before a gated MLP, rotary positions, linear layers with or without biases; anything else is
refused by name. The operations beyond ONNX's own are onnxruntime's (docs/ContribOperators.md there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR_VERSION = 21, 10
_FUSED = "com.microsoft"

_LONGEST = 8192
"""Positions that the rotary tables are made for."""


class NotPlainError(Exception):
    """This model is of another shape; says in what."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Of a plain decoder; ``longest`` is how many positions its program's rotary tables have."""

    layer_count: int
    heads: int
    kv_heads: int
    head_size: int
    longest: int
    vocabulary_size: int


class _Graph:
    """Nodes and weights as they are added; a value goes by its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, tensor: torch.Tensor) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(tensor.detach().float().numpy()), name))
        return name

    def node(self, operation: str, inputs: list[str], name: str, domain: str = "", **attributes: Any) -> str:
        """An operation with one output; returns its name."""
        self.nodes.append(helper.make_node(operation, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def linear(self, given: str, name: str, *modules: Any) -> str:
        """Linear layers on one input, their outputs one after another."""
        weight = self.weight(f"{name}.weight", torch.cat([module.weight for module in modules]).t())
        product = self.node("MatMul", [given, weight], f"{name}.product")
        if modules[0].bias is None:
            return product
        bias = self.weight(f"{name}.bias", torch.cat([module.bias for module in modules]))
        return self.node("Add", [product, bias], f"{name}.sum")

    def add_and_norm(self, first: str, second: str, name: str, norm: Any) -> tuple[str, str]:
        """The sum of two values, normalised, and the sum itself."""
        weight = self.weight(f"{name}.weight", norm.weight)
        outputs = [f"{name}.normed", "", "", f"{name}.sum"]
        operation, epsilon = "SkipSimplifiedLayerNormalization", norm.variance_epsilon
        self.nodes.append(
            helper.make_node(operation, [first, second, weight], outputs, name=name, domain=_FUSED, epsilon=epsilon)
        )
        return outputs[0], outputs[3]


def decoder_graph(model: Any) -> tuple[onnx.ModelProto, DecoderShape]:
    """One row of each of several sequences through a plain decoder, weights and all. NotPlainError says what it lacks.

    ``tokens`` int64 ``[batch, 1]`` at ``positions`` int32 ``[batch]``, of which ``length`` (int32) is the largest plus one;
    ``past_keys.i`` and ``past_values.i`` float32 ``[batch, kv_heads, room, head_size]`` and ``keys.i`` and ``values.i``, which
    may be the same memory; ``logits`` float32 ``[batch, vocabulary]``.
    """
    decoder, shape = _decoder(model)
    layers = decoder.layers
    graph = _Graph()
    hidden = graph.node("Gather", [graph.weight("embedding", decoder.embed_tokens.weight), "tokens"], "embedded")
    first = layers[0].input_layernorm
    scale = graph.weight("norm.0.weight", first.weight)
    norm = {"axis": -1, "epsilon": first.variance_epsilon, "stash_type": 1}
    normed = graph.node("SimplifiedLayerNormalization", [hidden, scale], "normed", **norm)
    tables = _rotary_tables(decoder, shape)
    rotary = [graph.weight(name, table) for name, table in zip(("cosines", "sines"), tables, strict=True)]
    for index, layer in enumerate(layers):
        attended = _attention(graph, layer.self_attn, normed, index, rotary, shape)
        normed, hidden = graph.add_and_norm(hidden, attended, f"mlp_norm.{index}", layer.post_attention_layernorm)
        gate = graph.linear(normed, f"gate.{index}", layer.mlp.gate_proj)
        gated = graph.node("Mul", [gate, graph.node("Sigmoid", [gate], f"sigmoid.{index}")], f"silu.{index}")
        product = graph.node("Mul", [gated, graph.linear(normed, f"up.{index}", layer.mlp.up_proj)], f"gated.{index}")
        down = graph.linear(product, f"down.{index}", layer.mlp.down_proj)
        following = layers[index + 1].input_layernorm if index + 1 < len(layers) else decoder.norm
        normed, hidden = graph.add_and_norm(hidden, down, f"norm.{index + 1}", following)
    logits = graph.linear(normed, "head", model.lm_head)
    graph.node("Squeeze", [logits, _axis(graph)], "logits")
    return _model(graph, shape), shape


def _axis(graph: _Graph) -> str:
    graph.weights.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"))
    return "axis"


def _attention(graph: _Graph, module: Any, normed: str, index: int, rotary: list[str], shape: DecoderShape) -> str:
    packed = graph.linear(normed, f"qkv.{index}", module.q_proj, module.k_proj, module.v_proj)
    inputs = [packed, "", "", f"past_keys.{index}", f"past_values.{index}", "positions", "length", *rotary]
    outputs = [f"attended.{index}", f"keys.{index}", f"values.{index}"]
    attributes = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads, "do_rotary": 1, "scale": module.scaling}
    graph.nodes.append(
        helper.make_node("GroupQueryAttention", inputs, outputs, name=outputs[0], domain=_FUSED, **attributes)
    )
    return graph.linear(outputs[0], f"out.{index}", module.o_proj)


def _model(graph: _Graph, shape: DecoderShape) -> onnx.ModelProto:
    def value(name: str, kind: int, *sizes: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, sizes)

    kv = [
        (name, index, ("batch", shape.kv_heads, "room", shape.head_size))
        for index in range(shape.layer_count)
        for name in ("keys", "values")
    ]
    inputs = [
        value("tokens", TensorProto.INT64, "batch", 1),
        value("positions", TensorProto.INT32, "batch"),
        value("length", TensorProto.INT32),
        *(value(f"past_{name}.{index}", TensorProto.FLOAT, *sizes) for name, index, sizes in kv),
    ]
    outputs = [
        value("logits", TensorProto.FLOAT, "batch", shape.vocabulary_size),
        *(value(f"{name}.{index}", TensorProto.FLOAT, *sizes) for name, index, sizes in kv),
    ]
    return helper.make_model(
        helper.make_graph(graph.nodes, "steps", inputs, outputs, graph.weights),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, 1)],
        ir_version=_IR_VERSION,
    )


def _decoder(model: Any) -> tuple[Any, DecoderShape]:
    """The decoder and its shape; NotPlainError if anything is there that the program does not compute."""
    config = model.config
    decoder: Any = getattr(model, "model", None)
    _expect(model, {"model", "lm_head"})
    _expect(decoder, {"embed_tokens", "layers", "norm", "rotary_emb"})
    for layer in decoder.layers:
        _expect(layer, {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
        _expect(layer.self_attn, {"q_proj", "k_proj", "v_proj", "o_proj"})
        _expect(layer.mlp, {"gate_proj", "up_proj", "down_proj", "act_fn"})
        if getattr(layer.self_attn, "sliding_window", getattr(config, "sliding_window", None)) is not None:
            raise NotPlainError("it attends within a window")
        for norm in (layer.input_layernorm, layer.post_attention_layernorm, decoder.norm):
            if not hasattr(norm, "variance_epsilon"):
                raise NotPlainError(f"it normalises by {type(norm).__name__}")
    if config.hidden_act != "silu":
        raise NotPlainError(f"its activation is {config.hidden_act}")
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise NotPlainError(f"its rotary positions are {kind}: they depend on the length")
    attention = decoder.layers[0].self_attn
    size = attention.head_dim
    heads, kv_heads = attention.q_proj.weight.shape[0] // size, attention.k_proj.weight.shape[0] // size
    longest = min(_LONGEST, config.max_position_embeddings)
    return decoder, DecoderShape(
        len(decoder.layers), heads, kv_heads, size, longest, vocabulary_size=model.lm_head.weight.shape[0]
    )


def _expect(module: Any, names: set[str]) -> None:
    found = {name for name, _ in module.named_children()} if module is not None else set()
    if found != names:
        parts = ", ".join(sorted(found ^ names))
        raise NotPlainError(f"{type(module).__name__} has more or less than a plain decoder: {parts}")


def _rotary_tables(decoder: Any, shape: DecoderShape) -> list[torch.Tensor]:
    """Cosines and sines ``[positions, head_size / 2]``, as the model computes them."""
    positions = torch.arange(shape.longest).unsqueeze(0)
    with torch.inference_mode():
        tables = decoder.rotary_emb(torch.zeros(1, 1, 1), positions)
    if tables[0].shape[-1] != shape.head_size:
        raise NotPlainError("it turns a part of each head only")
    return [table[0, :, : shape.head_size // 2] for table in tables]
