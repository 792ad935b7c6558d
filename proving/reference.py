"""Plain decoding of every prompt in a fresh process: one token a forward, without wire, draft or
speculation.

The proof runs this as ``python -m proving.reference``. It prints how many tokens it has added, a
line for each batch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path

import numpy as np
import torch

from proving.disturbances import disturbances_on
from proving.pairs import BACKENDS, COMPILED, CUDA, GGUF, LLAMACPP, RANKS, Pair, pair_named
from proving.prompts import PromptSource
from proving.ranked_target import RankedTarget
from proving.results import Reference, ResultStore
from proving.schedule import DTYPES, Cell, Turn, plan
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.gguf_decoder import GgufDecoder
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.engine import Engine
from slipstream.engine.llamacpp.backend import LlamaCppBackend
from slipstream.engine.model import Backend, Segment
from slipstream.engine.pages import MIB
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.blocks import floats_of
from slipstream.sampling.choose import choose
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.softmax import log_softmax

BATCH_SIZE = 32
_PAGE_SIZE = 16
_STREAM_ROOM = 512
"""Cells beyond a context that a stream of llama.cpp may take."""


class PlainDecoder:
    """A target on the engine's parts, driven by a loop without rounds or a schedule."""

    def __init__(self, pair: Pair, longest: int) -> None:
        """``longest``: the longest sequence in tokens, including the prompt."""
        self._backend: Backend
        self._ranks: RankedTarget | None = None
        token_count = BATCH_SIZE * (ceil(longest / _PAGE_SIZE) + 1) * _PAGE_SIZE
        name = str(pair.target)
        if pair.backend == COMPILED:
            self._backend = load_compiled_checkpoint(
                name, dtype=pair.dtype, page_size=_PAGE_SIZE, single_rows=False, threads=1
            )
        elif pair.backend == GGUF:
            decoder = GgufDecoder(pair.target, _PAGE_SIZE)
            self._backend = CompiledBackend(decoder, page_size=_PAGE_SIZE, single_rows=False, threads=1)
        elif pair.backend == LLAMACPP:
            self._backend = LlamaCppBackend(pair.target, threads=1, most_tokens=longest, exact=True)
            token_count = BATCH_SIZE * (self._backend.model.context_length + _STREAM_ROOM)
        elif pair.backend == CUDA:
            from slipstream.engine.torch.cuda.backend import load_cuda  # and with it Triton, which only CUDA has

            self._backend = load_cuda(name, device="cuda", dtype=pair.dtype, page_size=_PAGE_SIZE, exact=True)
        elif pair.backend == RANKS:
            self._ranks = RankedTarget(name, pair.dtype)
            self._backend = self._ranks.backend
        else:
            model = TransformersModel.load(name, device="cpu", dtype=pair.dtype)
            self._backend = PlannedBackend(model, page_size=_PAGE_SIZE)
        self._cache = Engine(self._backend, kv_memory_mib=token_count * pair.kv_bytes_per_token() / MIB).cache

    def close(self) -> None:
        """End the other ranks, if there are any."""
        if self._ranks is not None:
            self._ranks.close()

    def decode(self, prompts: Sequence[Sequence[int]], turns: Sequence[Turn], token_count: int) -> Reference:
        """Decode a batch of turns, each after its prompt."""
        sequences = [CachedSequence(str(index)) for index in range(len(prompts))]
        rules = [_rule(turn) for turn in turns]
        shape = (len(prompts), token_count)
        reference = Reference(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        logits = torch.cat(
            [self._forward([sequence], [prompt]) for sequence, prompt in zip(sequences, prompts, strict=True)]
        )
        for position in range(token_count):
            chosen, margins = _choose(logits, rules, [len(sequence) for sequence in sequences])
            reference.tokens[:, position] = chosen
            reference.margins[:, position] = margins
            # torch's own log-softmax has other bits on processors without AVX-512.
            reference.logprobs[:, position] = [
                log_softmax(row)[token] for row, token in zip(logits.numpy(), chosen, strict=True)
            ]
            if position + 1 < token_count:
                logits = self._forward(sequences, [[token] for token in chosen])
        for sequence in sequences:
            self._cache.release(sequence)
        return reference

    def _forward(self, sequences: Sequence[CachedSequence], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append each sequence's tokens, and return the logits after each one's last token."""
        segments = []
        for sequence, added in zip(sequences, tokens, strict=True):
            start = len(sequence)
            self._cache.extend(sequence, added)
            segments.append(Segment(added, start, sequence.pages, wanted=1))
        # A copy, for the backend's own may be overwritten by the next forward.
        return torch.from_numpy(floats_of(self._backend.forward(segments)).copy())


def _rule(turn: Turn) -> SamplingRule:
    # A temperature crosses the wire as a float32.
    return SamplingRule(temperature=float(np.float32(turn.temperature)), seed=turn.seed)


def _choose(
    logits: torch.Tensor, rules: Sequence[SamplingRule], positions: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return each row's token and its margin. ``positions`` are those of the chosen tokens."""
    choices = choose(logits.numpy(), [Row(rule, position) for rule, position in zip(rules, positions, strict=True)])
    return [choice.token for choice in choices], [choice.margin for choice in choices]


def decode_cell(
    decoder: PlainDecoder,
    cell: Cell,
    prompts: Sequence[Sequence[int]],
    token_count: int,
    report: Callable[[int], None],
) -> Reference:
    """Decode a cell's turns in order. Prompts of similar length share a batch. ``report`` gets the
    number of new tokens."""
    turns = cell.turns
    shape = (len(turns), token_count)
    whole = Reference(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    order = sorted(range(len(turns)), key=lambda index: len(prompts[turns[index].prompt]))
    for start in range(0, len(order), BATCH_SIZE):
        batch = order[start : start + BATCH_SIZE]
        part = decoder.decode([prompts[turns[i].prompt] for i in batch], [turns[i] for i in batch], token_count)
        whole.tokens[batch], whole.logprobs[batch], whole.margins[batch] = part.tokens, part.logprobs, part.margins
        report(len(batch) * token_count)
    return whole


def main() -> None:
    """Entry point of the child process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--backend", choices=BACKENDS, default=COMPILED)
    options = parser.parse_args()
    os.nice(10)  # it fills what the served system leaves idle
    torch.set_num_threads(1)
    store = ResultStore(options.directory)
    prompts = PromptSource(options.seed).draw(options.prompts)
    cells = plan([len(prompt) for prompt in prompts], options.seed, disturbances_on(options.backend))
    missing = [cell for cell in cells if cell.dtype == options.dtype and store.reference(cell.index) is None]
    for name in dict.fromkeys(cell.pair for cell in missing):
        pair = pair_named(name, options.directory, options.dtype, options.backend)
        decoder = PlainDecoder(pair, max(map(len, prompts)) + options.tokens)
        for cell in (cell for cell in missing if cell.pair == name):
            reference = decode_cell(decoder, cell, prompts, options.tokens, lambda count: print(count, flush=True))
            store.save_reference(cell.index, reference)
        decoder.close()


if __name__ == "__main__":
    main()
