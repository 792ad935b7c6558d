"""Train a draft with another vocabulary: ``python -P -m training.other_vocabulary``.

Its tokenizer has half the tokens of the embedded pair's, splits text by another pattern, and gives
its special tokens other ids. The model has the embedded draft's body. Its embeddings begin as means
of the embedded draft's, and all is trained on the texts that the target was trained to answer,
in the draft's own tokens. 16 passes take eight minutes on one quiet core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Regex, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from training import corpus
from training.embedded_pair import (
    DRAFT_SHAPE,
    END_OF_TEXT,
    TURN_END,
    TURN_START,
    Recipe,
    load,
    new_model,
    save,
    train,
    train_tokenizer,
)

VOCABULARY_SIZE = 2048
RECIPE = Recipe(passes=16, peak_learning_rate=2e-3, batch_tokens=2048)
DIRECTORY = Path("proving/other_vocabulary")
"""Directory in which the proof, benchmarks and tests look for the draft."""

_RULE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Llama 3's pattern. The embedded pair's, GPT-2's, lets a word begin with a space alone."""
_WORDS = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(_RULE), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)


def adapted(draft: LlamaForCausalLM, old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a model with a draft's body, whose embedding of a token is the mean of the draft's
    embeddings of the same text."""
    model = new_model(DRAFT_SHAPE, VOCABULARY_SIZE, end=new.convert_tokens_to_ids(TURN_END))
    spelt = draft.get_input_embeddings().weight.detach()
    state = {name: value for name, value in draft.state_dict().items() if "embed" not in name and "lm_head" not in name}
    model.load_state_dict(state, strict=False)
    with torch.no_grad():
        for token in range(VOCABULARY_SIZE):
            name = new.convert_ids_to_tokens(token)
            known = old.convert_tokens_to_ids(name) if name in old.get_vocab() else None
            ids = [known] if known is not None else old.encode(new.decode([token]), add_special_tokens=False)
            model.get_input_embeddings().weight[token] = spelt[ids].mean(0)
    return model


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, default=Path("slipstream/embedded"), help="directory of the embedded pair")
    parser.add_argument("--out", type=Path, default=DIRECTORY, help="directory of the draft")
    parser.add_argument("--device", default="cpu", help="torch device to train on: cpu or cuda")
    parser.add_argument("--passes", type=int, default=RECIPE.passes, help="passes over the corpus")
    options = parser.parse_args()
    entries = corpus.read(options.pair / "symbols.jsonl")
    special_tokens = (END_OF_TEXT, TURN_END, TURN_START)
    train_tokenizer(
        entries, options.out, vocabulary_size=VOCABULARY_SIZE, special_tokens=special_tokens, words=_WORDS, seed=1
    )
    old = PreTrainedTokenizerFast.from_pretrained(options.pair / "draft")
    new = PreTrainedTokenizerFast.from_pretrained(options.out)
    model = adapted(load(options.pair / "draft", "cpu"), old, new)
    recipe = Recipe(options.passes, RECIPE.peak_learning_rate, RECIPE.batch_tokens)
    train(model, None, new, entries, recipe, options.device)
    save(model, options.out, options.out)


if __name__ == "__main__":
    main()
