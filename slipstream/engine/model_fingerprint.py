"""A hash of all that a checkpoint's logits depend on besides the tokens. Two models with the same
hash give the same bits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

SAMPLED_VALUES = 64
"""Values of each weight that are hashed."""

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
"""Fields of a config that cannot change a logit. Any other field counts, also an unknown one."""


def model_fingerprint(
    said: Sequence[Any], config: Mapping[str, Any], samples: Iterable[tuple[str, tuple[int, ...], np.ndarray]]
) -> str:
    """Return a sha256 over all that a model computes with.

    ``said`` are its dtype, kind of device, class, attention and end tokens. ``samples`` are the
    name, the shape and some values (float32) of each weight, in the order of their names. A hash of
    all bytes would take minutes.
    """
    digest = hashlib.sha256(_canonical([list(said), config]))
    for name, shape, values in samples:
        digest.update(f"{name}{shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(_plain(value), sort_keys=True, default=str).encode()


def _plain(value: Any) -> Any:
    """Leave out what cannot change a logit, at any depth, and what is None. 10000 and 10000.0 are
    the same number."""
    if isinstance(value, Mapping):
        return {
            str(name): _plain(each) for name, each in value.items() if each is not None and name not in NOT_IN_LOGITS
        }
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
