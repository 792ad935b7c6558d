"""Train the embedded pair: ``python -m training.embedded_pair all --out slipstream/embedded``.

Each of six steps can run alone. ``corpus`` reads the docstrings, and ``tokenizer`` trains a
byte-level BPE. ``target`` trains next-token cross-entropy on the answers, and ``polish`` adds some
passes at a lower rate. ``draft`` is distilled from the target's distributions, and ``polish-draft``
adds passes. All take two hours on two quiet cores.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training import corpus
from training.dialogues import HELD_OUT_PHRASINGS, SYSTEM_PROMPTS, Dialogue, draw_pass
from training.muon import Muon

VOCABULARY_SIZE = 4096
CONTEXT_LENGTH = 2048
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TARGET_SHAPE = {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6, "intermediate_size": 1024}
DRAFT_SHAPE = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 512}
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    passes: int
    peak_learning_rate: float
    batch_tokens: int
    seed: int = 0


TARGET_RECIPE = Recipe(passes=40, peak_learning_rate=2e-3, batch_tokens=2048)
POLISH_RECIPE = Recipe(passes=16, peak_learning_rate=7e-4, batch_tokens=2048, seed=1)
DRAFT_RECIPE = Recipe(passes=36, peak_learning_rate=2e-3, batch_tokens=2048)
POLISH_DRAFT_RECIPE = Recipe(passes=16, peak_learning_rate=1e-3, batch_tokens=2048, seed=1)
STEPS = ("corpus", "tokenizer", "target", "polish", "draft", "polish-draft")


def train_tokenizer(
    entries: list[corpus.Entry],
    out: Path,
    *,
    vocabulary_size: int = VOCABULARY_SIZE,
    special_tokens: Sequence[str] = (END_OF_TEXT, TURN_START, TURN_END),
    words: pre_tokenizers.PreTokenizer | None = None,
    seed: int = 0,
) -> None:
    """Train a byte-level BPE on the corpus's dialogues. Symbols are repeated, so that common ones
    become few tokens.

    ``special_tokens`` are the first ids, in this order. ``words`` divides text, by GPT-2's pattern
    if it is None.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[*special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(seed)
    texts = [m["content"] for _ in range(3) for d in draw_pass(entries, rng) for m in d]
    texts += ["system\nuser\nassistant\n", *SYSTEM_PROMPTS, *HELD_OUT_PHRASINGS]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )
    fast.save_pretrained(out)


def _encode(tokenizer: PreTrainedTokenizerFast, dialogue: Dialogue) -> tuple[list[int], list[int]]:
    """Return a dialogue's token ids and labels. Only the answers and their end marks have
    labels."""
    ids: list[int] = []
    labels: list[int] = []
    for message in dialogue:
        head = tokenizer.encode(f"{TURN_START}{message['role']}\n", add_special_tokens=False)
        body = tokenizer.encode(f"{message['content']}{TURN_END}", add_special_tokens=False)
        line_end = tokenizer.encode("\n", add_special_tokens=False)
        ids += head + body + line_end
        learnt = body if message["role"] == "assistant" else [IGNORED] * len(body)
        labels += [IGNORED] * len(head) + learnt + [IGNORED] * len(line_end)
    return ids, labels


def batches(
    tokenizer: PreTrainedTokenizerFast, entries: list[corpus.Entry], batch_tokens: int, rng: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield right-padded ``[batch, length]`` int64 ids and labels of one pass, with dialogues of
    similar length together."""
    encoded = sorted((_encode(tokenizer, d) for d in draw_pass(entries, rng)), key=lambda pair: len(pair[0]))
    batches: list[list[tuple[list[int], list[int]]]] = [[]]
    for pair in encoded:
        if (len(batches[-1]) + 1) * len(pair[0]) > batch_tokens and batches[-1]:
            batches.append([])
        batches[-1].append(pair)
    rng.shuffle(batches)
    for batch in batches:
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([i + [0] * (width - len(i)) for i, _ in batch])
        labels = torch.tensor([known + [IGNORED] * (width - len(known)) for _, known in batch])
        yield ids, labels


def new_model(shape: dict[str, int], vocabulary_size: int = VOCABULARY_SIZE, end: int = 2) -> LlamaForCausalLM:
    """Return a model of random weights whose end token is ``end``."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary_size,
            max_position_embeddings=CONTEXT_LENGTH,
            tie_word_embeddings=True,
            num_key_value_heads=shape["num_attention_heads"],
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=0,
            **shape,
        )
    )


def has_bfloat16(device: str) -> bool:
    """Return whether a device computes in bfloat16. Without a unit for it, that takes ten times as
    long as float32."""
    return not device.startswith("cpu") or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _optimizers(model: LlamaForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices and AdamW for the rest. After 16 passes over 300 symbols the
    loss is 0.40, and 3.70 with AdamW alone."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    if has_bfloat16(str(matrices[0].device.type)):
        muon: torch.optim.Optimizer = torch.optim.Muon(
            matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        )
    else:
        muon = Muon(matrices, lr=learning_rate)
    return [
        muon,
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
    ]


def train(
    student: LlamaForCausalLM,
    teacher: LlamaForCausalLM | None,
    tokenizer: PreTrainedTokenizerFast,
    entries: list[corpus.Entry],
    recipe: Recipe,
    device: str,
) -> None:
    """Train by cross-entropy on the answers or, with a teacher, by the KL divergence to its
    distributions there."""
    rng = random.Random(recipe.seed)
    step_count = recipe.passes * sum(1 for _ in batches(tokenizer, entries, recipe.batch_tokens, random.Random(0)))
    student.train().to(device)
    optimizers = _optimizers(student, recipe.peak_learning_rate)
    warmup = max(20, step_count // 20)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warmup, 0.51 + 0.5 * math.cos(math.pi * min(1, step / step_count)))
        )
        for optimizer in optimizers
    ]
    started = time.monotonic()
    for done in range(recipe.passes):
        total, count = 0.0, 0
        for ids, labels in batches(tokenizer, entries, recipe.batch_tokens, rng):
            ids, labels = ids.to(device), labels.to(device)
            learnt = labels[:, 1:] != IGNORED
            with torch.autocast(device, dtype=torch.bfloat16, enabled=has_bfloat16(device)):
                hidden = student.model(ids).last_hidden_state[:, :-1][learnt]
                logits = student.lm_head(hidden).float()
                if teacher is None:
                    loss = F.cross_entropy(logits, labels[:, 1:][learnt])
                else:
                    with torch.no_grad():
                        goal = teacher.lm_head(teacher.model(ids).last_hidden_state[:, :-1][learnt]).float()
                    loss = F.kl_div(
                        logits.log_softmax(-1), goal.log_softmax(-1), log_target=True, reduction="batchmean"
                    )
            student.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
            total, count = total + loss.item(), count + 1
        elapsed = time.monotonic() - started
        print(f"pass {done + 1}/{recipe.passes}  loss {total / count:.4f}  {elapsed:.0f} s", flush=True)


def load(directory: Path, device: str) -> LlamaForCausalLM:
    """Return the model of a directory in float32."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device).eval()


def save(model: LlamaForCausalLM, tokenizer_directory: Path, out: Path) -> None:
    """Write a model in bfloat16, with the tokenizer of a directory."""
    model.generation_config.do_sample = False
    model.eval().to("cpu", torch.bfloat16).save_pretrained(out)
    PreTrainedTokenizerFast.from_pretrained(tokenizer_directory).save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("all", *STEPS))
    parser.add_argument("--out", type=Path, default=Path("slipstream/embedded"), help="directory of the embedded pair")
    parser.add_argument("--device", default="cpu", help="torch device to train on: cpu or cuda")
    parser.add_argument("--passes", type=int, help="override the recipe's number of passes over the corpus")
    options = parser.parse_args()
    symbols = options.out / "symbols.jsonl"
    steps = STEPS if options.step == "all" else (options.step,)
    if "corpus" in steps:
        options.out.mkdir(parents=True, exist_ok=True)
        corpus.write(symbols, corpus.collect())
    entries = corpus.read(symbols)
    target_directory, draft_directory = options.out / "target", options.out / "draft"
    if "tokenizer" in steps:
        train_tokenizer(entries, target_directory)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target_directory)
    recipes = {
        "target": TARGET_RECIPE,
        "polish": POLISH_RECIPE,
        "draft": DRAFT_RECIPE,
        "polish-draft": POLISH_DRAFT_RECIPE,
    }
    for step in (step for step in steps if step in recipes):
        recipe = recipes[step] if options.passes is None else replace(recipes[step], passes=options.passes)
        is_draft, begins = step.endswith("draft"), not step.startswith("polish")
        out = draft_directory if is_draft else target_directory
        teacher = load(target_directory, options.device) if is_draft else None
        model = new_model(DRAFT_SHAPE if is_draft else TARGET_SHAPE) if begins else load(out, options.device)
        train(model, teacher, tokenizer, entries, recipe, options.device)
        save(model, target_directory, out)


if __name__ == "__main__":
    main()
