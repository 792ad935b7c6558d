"""Training of Medusa heads (Cai et al. 2024): head i learns the target's distribution i + 1 tokens
after the next one, from the target's last hidden state."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from training.heads import Read, Target, Told

_HEAD_DECAY = 0.8
"""Weight of a head's loss against that of the head before: later tokens count less often."""


class ResidualBlock(nn.Module):
    """x + SiLU(Linear(x))."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute rows."""
        return rows + F.silu(self.linear(rows))


class MedusaTraining:
    """`training.heads.Trained` of Medusa heads."""

    def __init__(self, target: Target, head_count: int) -> None:
        self._target = target
        output = target.model.get_output_embeddings().weight
        vocabulary_size, hidden_size = output.shape
        self._heads = nn.ModuleList(
            nn.Sequential(ResidualBlock(hidden_size), nn.Linear(hidden_size, vocabulary_size, bias=False))
            for _ in range(head_count)
        )
        with torch.no_grad():
            for head in self._heads:
                head[1].weight.copy_(output)  # type: ignore[index]
        self.module: nn.Module = self._heads
        self.output_size = vocabulary_size

    def tell(self, read: Read) -> Told:
        """See `training.heads.Trained`."""
        loss, right, count = torch.zeros((), device=read.ids.device), [], []
        for number, head in enumerate(self._heads):
            ahead = number + 2
            are_chosen = read.are_answers[:, 1:][:, : -ahead + 1] & read.are_answers[:, ahead:]
            rows = are_chosen.nonzero(as_tuple=True)
            goal = self._target.logits(read.last[rows[0], rows[1] + ahead - 1]).float()
            said = head(read.last[rows]).float().log_softmax(-1)
            divergence = F.kl_div(said, goal.log_softmax(-1), log_target=True, reduction="batchmean")
            loss = loss + _HEAD_DECAY**number * divergence
            right.append((said.argmax(-1) == goal.argmax(-1)).sum())
            count.append(torch.tensor(len(rows[0]), device=read.ids.device))
        return Told(loss, torch.stack(right), torch.stack(count))

    def save(self, out: Path) -> None:
        """Write the layout that vLLM and ``speculators`` have of Medusa heads."""
        tensors: dict[str, torch.Tensor] = {}
        for number, head in enumerate(self._heads):
            state = head.state_dict()
            tensors |= {f"blocks.{number}.layers.0.{part}": state[f"0.linear.{part}"] for part in ("weight", "bias")}
            tensors[f"lm_heads.{number}.weight"] = state["1.weight"]
        stored = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
        save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
        shape = self._target.model.config
        values = {
            "architectures": ["MedusaModel"],
            "speculators_model_type": "medusa",
            "speculators_config": {"algorithm": "medusa", "verifier": {"name_or_path": self._target.directory.name}},
            "num_heads": len(self._heads),
            "num_hidden_layers": 1,
            "medusa_hidden_size": shape.hidden_size,
            "medusa_vocab_size": shape.vocab_size,
            "truncated_vocab_size": 0,
            "original_lm_head": False,
            "medusa_fc_bias": True,
        }
        (out / "config.json").write_text(json.dumps(values, indent=2) + "\n")
