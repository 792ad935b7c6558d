"""Training of an EAGLE-3 head: it follows itself for a few steps, as it will in use (Li et al.
2025, "training-time test").

In step j a row of token i reads token i + 1 + j, and its own output of the step before in place of
the feature. It attends to the features' keys up to i, and to its own keys of the steps since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from slipstream.engine.heads.eagle3_config import Eagle3Config, TargetShape, read_eagle3_config
from training.eagle3_module import Eagle3
from training.heads import Read, Target, Told

_STEP_DECAY = 0.8
"""Weight of a step's loss against that of the step before: later tokens count less often."""


Rows = tuple[torch.Tensor, torch.Tensor]
"""Rows of a batch of dialogues: their places in it, and their positions."""


class Eagle3Training:
    """`training.heads.Trained` of an EAGLE-3 head."""

    def __init__(self, target: Target, steps: int, counts: Counter[int], values: dict[str, object]) -> None:
        """``counts``: how often the answers have each token. ``values``: the config.json."""
        self._steps, self._values = steps, values
        shape = target.model.config
        sizes = TargetShape(shape.num_hidden_layers, shape.hidden_size, shape.vocab_size)
        self._config: Eagle3Config = read_eagle3_config(self._values, sizes)
        self._ids = _commonest(counts, self._config.draft_vocabulary_size).to(target.device)
        self._module = Eagle3(self._config)
        self.module: nn.Module = self._module
        self.output_size = self._config.draft_vocabulary_size
        with torch.no_grad():
            self._module.embed_tokens.weight.copy_(target.model.get_input_embeddings().weight)
            self._module.lm_head.weight.copy_(target.model.get_output_embeddings().weight[self._ids])
            self._module.norm.weight.copy_(target.model.model.norm.weight)
        self._module.embed_tokens.requires_grad_(False)
        self._output = target.model.get_output_embeddings().weight[self._ids]

    def tell(self, read: Read) -> Told:
        """See `training.heads.Trained`."""
        length = read.ids.shape[1]
        batch, position = _starts(read.are_answers).nonzero(as_tuple=True)
        loss, right, count = torch.zeros((), device=read.ids.device), [], []
        for step, logits in enumerate(unroll(self._module, read, (batch, position), self._steps)):
            goal = position + 1 + step
            counts = (goal + 1 < length) & read.are_answers[batch, (goal + 1).clamp(max=length - 1)]
            step_loss, step_right = self._judge(logits[counts], read.last[batch[counts], goal[counts]])
            loss = loss + _STEP_DECAY**step * step_loss
            right.append(step_right)
            count.append(counts.sum())
        return Told(loss, torch.stack(right), torch.stack(count))

    def _judge(self, logits: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the divergence from the target's distribution over the draft's vocabulary, and how
        often the likeliest token of it is the same."""
        with torch.no_grad():
            goal = (last @ self._output.T).float()
        said = logits.float().log_softmax(-1)
        loss = F.kl_div(said, goal.log_softmax(-1), log_target=True, reduction="batchmean")
        return loss, (said.argmax(-1) == goal.argmax(-1)).sum()

    def save(self, out: Path) -> None:
        """Write the ``speculators`` layout."""
        tensors = {
            name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
            for name, tensor in self._module.state_dict().items()
        }
        ids = self._ids.cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(self._config.vocabulary_size, dtype=torch.bool).index_fill_(0, ids, True)
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        (out / "config.json").write_text(json.dumps(self._values, indent=2) + "\n")


def unroll(module: Eagle3, read: Read, rows: Rows, steps: int) -> Iterator[torch.Tensor]:
    """Yield the logits ``[rows, draft vocabulary]`` of each step. In step j a row at a position i
    guesses token i + 2 + j."""
    ids, (batch, position) = read.ids, rows
    positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    features = module.fuse(torch.cat(read.states, dim=-1).flatten(0, 1))
    inputs, residual = module.enter(ids.roll(-1, 1).flatten(), features)
    keys, values = module.keep(inputs, module.turns(positions.flatten()))
    text = keys.view(*ids.shape, *keys.shape[1:]), values.view(*ids.shape, *values.shape[1:])
    chosen = batch * ids.shape[1] + position
    inputs, residual = inputs[chosen], residual[chosen]
    own: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(steps):
        turns = module.turns(position + step)
        if step:
            own.append(module.keep(inputs, turns))
        said = module.leave(_attend(module, module.ask(inputs, turns), rows, text, own).flatten(1), residual)
        yield said.logits
        tokens = ids[batch, (position + 2 + step).clamp(max=ids.shape[1] - 1)]
        inputs, residual = module.enter(tokens, said.feature)


def config_values(
    target: Target, layers: tuple[int, ...], draft_vocabulary_size: int, steps: int, sizes: Mapping[str, int | None]
) -> dict[str, object]:
    """Return the config.json of a head as wide as its target, but for the ``sizes`` of its layer
    that are given."""
    shape = target.model.config
    layer = {
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
    } | {key: size for key, size in sizes.items() if size is not None}
    verifier = {"name_or_path": str(target.directory.name), "architectures": [type(target.model).__name__]}
    proposal = {"proposal_type": "greedy", "speculative_tokens": steps}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": draft_vocabulary_size,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "dtype": "bfloat16",
    }


def _commonest(counts: Counter[int], size: int) -> torch.Tensor:
    """Return the commonest tokens in the order of their ids, filled up with the lowest ids."""
    found = [token for token, _ in counts.most_common(size)]
    known = set(found)
    others = (token for token in range(2**31) if token not in known)
    return torch.tensor(sorted([*found, *(next(others) for _ in range(size - len(found)))]))


def _starts(are_answers: torch.Tensor) -> torch.Tensor:
    """Return the rows after which the head guesses: the two tokens after each are the target's."""
    after = are_answers.roll(-1, 1) & are_answers.roll(-2, 1)
    after[:, -2:] = False
    return after


def _attend(
    module: Eagle3,
    queries: torch.Tensor,
    rows: Rows,
    text: tuple[torch.Tensor, torch.Tensor],
    own: list[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Return what rows ``(batch, position)`` attend to ``[rows, heads, size]``: the ``text`` up to
    their positions, and keys and values of their ``own``."""
    keys, values = text
    batch, length, kv_heads, size = keys.shape
    shared = queries.shape[1] // kv_heads
    apart = queries.reshape(-1, kv_heads, shared, size)
    grouped = queries.new_zeros(batch, length, kv_heads, shared, size)
    grouped[rows] = apart
    scores = torch.einsum("bqhgs,bkhs->bqhgk", grouped, keys)[rows].float()
    later = torch.arange(length, device=keys.device) > rows[1].unsqueeze(1)
    scores = scores.masked_fill(later[:, None, None, :], -torch.inf)
    each = [torch.einsum("rhgs,rhs->rhg", apart, key).float() for key, _ in own]
    weights = (torch.cat([scores, *(one.unsqueeze(-1) for one in each)], dim=-1) * module.scaling).softmax(-1)
    weights = weights.to(values.dtype)
    spread = weights.new_zeros(batch, length, kv_heads, shared, length)
    spread[rows] = weights[..., :length]
    attended = torch.einsum("bqhgk,bkhs->bqhgs", spread, values)[rows]
    for number, (_, value) in enumerate(own):
        attended = attended + weights[..., length + number, None] * value.unsqueeze(2)
    return attended.flatten(1, 2)
