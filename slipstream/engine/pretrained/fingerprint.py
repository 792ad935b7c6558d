"""What a model's logits depend on besides the tokens, as one hash: two models with the same one
give the same bits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

_SAMPLED_VALUES = 64

NOT_IN_LOGITS = frozenset(
    {
        # who wrote the file, when, and where it lies; the class that is run is hashed itself
        "transformers_version",
        "_name_or_path",
        "architectures",
        # what the weights were stored as; what they are computed in is hashed itself
        "dtype",
        "torch_dtype",
        # what a forward hands back beside its logits
        "use_cache",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        # training
        "initializer_range",
        "attention_dropout",
        "hidden_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "router_aux_loss_coef",
        # other heads
        "id2label",
        "label2id",
        "problem_type",
        # tokens that texts begin with and are filled up with; those that end them are hashed
        # themselves
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    }
)
"""Fields of a config that cannot change a logit. Whatever else there is counts, also what nobody
here has heard of."""


def weights_fingerprint(model: Any, end_token_ids: tuple[int, ...]) -> str:
    """sha256 over all that a loaded ``PreTrainedModel`` computes with: dtype, kind of device,
    class, config, end tokens, and the names, shapes and 64 evenly spaced values of the weights.
    Milliseconds, where a hash of all bytes would take minutes."""
    attention = getattr(model.config, "_attn_implementation", None)
    said = [str(model.dtype), device_kind(model.device), type(model).__name__, attention, list(end_token_ids)]
    digest = hashlib.sha256(_canonical([said, model.config.to_dict()]))
    for name, weight in sorted(model.state_dict().items()):
        values = weight.detach().reshape(-1)
        sample = values[:: max(1, values.numel() // _SAMPLED_VALUES)].to("cpu", torch.float32)
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def device_kind(device: torch.device) -> str:
    """Devices of one kind run the same kernels: a CPU's by its vector instructions, a GPU's by its
    model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"


def _canonical(value: Any) -> bytes:
    return json.dumps(_plain(value), sort_keys=True, default=str).encode()


def _plain(value: Any) -> Any:
    """Without what cannot change a logit, at any depth, and what is not there; 10000 and 10000.0
    are the same number."""
    if isinstance(value, dict):
        return {
            str(name): _plain(each) for name, each in value.items() if each is not None and name not in NOT_IN_LOGITS
        }
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
