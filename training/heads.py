"""Train heads for a target: ``python -P -m training.heads eagle3 --out DIR``.

The embedded target reads dialogues of the corpus (`training.dialogues`), and the heads learn its
distributions at the answers' tokens. Medusa heads learn from its last hidden state, an EAGLE-3 head
from three layers, while it follows itself for a few steps. What is written loads with
``verifier_service --heads DIR``.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from slipstream.engine.heads.eagle3_config import default_layer_ids
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.embedded_pair import IGNORED, batches
from training.muon import Muon

_PRINTED_EACH = 50
"""Steps between two lines of progress."""

_WARM_UP = 10
"""Steps until the learning rate is at its peak."""

_HELD_OUT_BATCHES = 4
"""Batches of dialogues that only measure."""


class Read(NamedTuple):
    """A batch of dialogues, and the target's hidden states there."""

    ids: torch.Tensor
    """int64 ``[batch, length]``, padded on the right."""
    are_answers: torch.Tensor
    """bool ``[batch, length]``: tokens that the target chose, or would have."""
    states: list[torch.Tensor]
    """The inputs of the layers that were asked for: float32 ``[batch, length, hidden]``."""
    last: torch.Tensor
    """The last hidden states, after the final norm: float32 ``[batch, length, hidden]``."""

    def halves(self) -> Read:
        """Return the same with states of half the size."""
        return self._replace(
            states=[each.to(torch.bfloat16) for each in self.states], last=self.last.to(torch.bfloat16)
        )

    def floats(self) -> Read:
        """Return the same with states in float32."""
        return self._replace(states=[each.float() for each in self.states], last=self.last.float())


class Told(NamedTuple):
    """The loss of heads over a batch, and how often they were right."""

    loss: torch.Tensor
    right: torch.Tensor
    """``[tokens ahead]``: how often the likeliest token was the target's."""
    counted: torch.Tensor
    """``[tokens ahead]``: of how many."""


class Trained(Protocol):
    """Heads in training."""

    module: nn.Module
    output_size: int
    """Rows of an output matrix."""

    def tell(self, read: Read) -> Told:
        """Return the loss over a batch, and what was right."""

    def save(self, out: Path) -> None:
        """Write the files that a verifier loads."""


def mixed(device: str) -> torch.autocast:
    """Return a context that computes in bfloat16 on a GPU, and in float32 on a CPU: few CPUs are
    faster in bfloat16."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device != "cpu")


class Target:
    """A target that reads and does not learn."""

    def __init__(self, directory: Path, device: str) -> None:
        self.directory = directory
        self.model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.model.to(device).eval().requires_grad_(False)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        self.device = device

    @torch.no_grad()
    def read(self, ids: torch.Tensor, labels: torch.Tensor, layers: tuple[int, ...]) -> Read:
        """Read a batch."""
        ids = ids.to(self.device)
        with mixed(self.device):
            output = self.model.model(ids, output_hidden_states=True)
        states = [output.hidden_states[layer].float() for layer in layers]
        return Read(ids, (labels != IGNORED).to(self.device), states, output.last_hidden_state.float())

    @torch.no_grad()
    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Return the logits of last hidden states ``[rows, hidden]``."""
        result: torch.Tensor = self.model.lm_head(last)
        return result


def read_all(
    target: Target, entries: list[corpus.Entry], layers: tuple[int, ...], pass_count: int, batch_tokens: int, seed: int
) -> list[Read]:
    """Return what the target makes of dialogues of some passes over the corpus, in halves."""
    rng = random.Random(seed)
    reads: list[Read] = []
    for number in range(pass_count):
        for ids, labels in batches(target.tokenizer, entries, batch_tokens, rng):
            reads.append(target.read(ids, labels, layers).halves())
        print(f"pass {number + 1} of {pass_count} read, {sum(r.ids.numel() for r in reads):,} tokens", flush=True)
    return reads


def kept_reads(path: Path, read: Callable[[], list[Read]]) -> list[Read]:
    """Return the reads that a file keeps; if there is none, write it. Reading takes as long as
    learning."""
    if not path.exists():
        reads = read()
        torch.save([tuple(each) for each in reads], path)
        return reads
    return [Read(*each) for each in torch.load(path, weights_only=True)]


class Recipe(NamedTuple):
    """The length and the rate of a training."""

    steps: int
    peak_learning_rate: float
    seed: int


def train(trained: Trained, reads: list[Read], recipe: Recipe) -> None:
    """Train for so many steps, and print what is right on dialogues that training does not see."""
    rng = random.Random(recipe.seed)
    held_out = [read.floats() for read in reads[-_HELD_OUT_BATCHES:]]
    learnt = reads[:-_HELD_OUT_BATCHES]
    device = reads[0].ids.device
    trained.module.train().to(device)
    used = _optimizers(trained, recipe.peak_learning_rate)
    for group in [group for optimizer in used for group in optimizer.param_groups]:
        group["peak"] = group["lr"]
    for step, read in enumerate(islice(_endless(learnt, rng), recipe.steps)):
        share = step / recipe.steps
        factor = min(1.0, (step + 1) / _WARM_UP) * (0.51 + 0.49 * math.cos(math.pi * share))
        for group in [group for optimizer in used for group in optimizer.param_groups]:
            group["lr"] = group["peak"] * factor
        with mixed(device.type):
            told = trained.tell(read.floats())
        trained.module.zero_grad(set_to_none=True)
        told.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained.module.parameters(), 1.0)
        for optimizer in used:
            optimizer.step()
        if (step + 1) % _PRINTED_EACH == 0 or step + 1 == recipe.steps:
            print(f"step {step + 1} of {recipe.steps}  {_measured(trained, held_out)}", flush=True)


def _optimizers(trained: Trained, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the inner matrices, and AdamW for the rest: an output matrix begins as the
    target's."""
    learnt = {name: each for name, each in trained.module.named_parameters() if each.requires_grad}
    inner = {name for name, each in learnt.items() if each.ndim == 2 and len(each) != trained.output_size}
    matrices, others = ([learnt[name] for name in learnt if (name in inner) is chosen] for chosen in (True, False))
    return [
        Muon(matrices, learning_rate),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def _endless(reads: list[Read], rng: random.Random) -> Iterator[Read]:
    while True:
        yield from rng.sample(reads, len(reads))


@torch.no_grad()
def _measured(trained: Trained, held_out: list[Read]) -> str:
    trained.module.eval()
    told = [trained.tell(read) for read in held_out]
    trained.module.train()
    right, counted = (torch.stack(each).sum(0) for each in zip(*[(t.right, t.counted) for t in told], strict=True))
    shares = " ".join(f"{share:.3f}" for share in (right / counted).tolist())
    loss = sum(t.loss.item() for t in told) / len(told)
    return f"loss {loss:.4f}  right {shares}"


def main() -> None:
    """Entry point."""
    from training.eagle3_training import Eagle3Training, config_values
    from training.medusa_training import MedusaTraining

    options = parser().parse_args()
    if options.out.exists():
        sys.exit(f"{options.out} exists: name a directory that does not")
    torch.manual_seed(options.seed)
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    target = Target(options.target, options.device)
    layers = tuple(options.layers or default_layer_ids(target.model.config.num_hidden_layers))

    def read() -> list[Read]:
        return read_all(target, entries, layers, options.passes, options.batch_tokens, options.seed)

    reads = read() if options.states is None else kept_reads(options.states, read)
    trained: Trained
    if options.kind == "medusa":
        trained = MedusaTraining(target, options.ahead)
    else:
        sizes = {"intermediate_size": options.feed_forward, "num_key_value_heads": options.key_heads}
        values = config_values(target, layers, options.draft_vocabulary, options.ahead, sizes)
        trained = Eagle3Training(target, options.ahead, answer_tokens(reads), values)
    parameters = sum(p.numel() for p in trained.module.parameters() if p.requires_grad)
    print(f"{parameters / 1e6:.2f} M parameters", flush=True)
    train(trained, reads, Recipe(options.steps, options.learning_rate, options.seed))
    options.out.mkdir(parents=True)
    trained.save(options.out)


def answer_tokens(reads: list[Read]) -> Counter[int]:
    """Return how often the answers have each token."""
    counts = Counter[int]()
    for read in reads:
        counts.update(read.ids[read.are_answers].tolist())
    return counts


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("kind", choices=("medusa", "eagle3"))
    made.add_argument("--out", type=Path, required=True, help="directory to write, which must not exist")
    made.add_argument("--target", type=Path, default=embedded_directory("target"), help="directory of the target")
    made.add_argument("--states", type=Path, help="file that keeps the target's hidden states for the next training")
    made.add_argument("--passes", type=int, default=1, help="passes over the corpus that the target reads")
    made.add_argument("--layers", type=int, nargs="*", help="layers whose inputs EAGLE-3 reads; by default the paper's")
    made.add_argument("--ahead", type=int, default=4, help="Medusa heads, or tokens that EAGLE-3 follows itself for")
    made.add_argument("--draft-vocabulary", type=int, default=1024, help="commonest tokens that EAGLE-3 can guess")
    made.add_argument("--feed-forward", type=int, help="width of EAGLE-3's feed-forward; by default the target's")
    made.add_argument("--key-heads", type=int, help="key heads of EAGLE-3; by default the target's")
    made.add_argument("--steps", type=int, default=280, help="steps of training, a batch each")
    made.add_argument("--learning-rate", type=float, default=2e-3)
    made.add_argument("--batch-tokens", type=int, default=2048)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--device", default="cpu", help="torch device to train on: cpu or cuda")
    return made


if __name__ == "__main__":
    main()
