"""How ranks divide a model, what they refuse, and what they send one another. No test here starts a
process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.engine.errors import RankGroupError, UnsupportedModelError
from slipstream.engine.model import Reserved, Segment
from slipstream.engine.sequence import PageCopy
from slipstream.engine.torch.parallel import calls
from slipstream.engine.torch.parallel.division import Division, divide
from slipstream.engine.torch.parallel.loaded import Loaded
from slipstream.engine.torch.parallel.loading import planned_part
from slipstream.engine.torch.parallel.part_loading import read_part
from slipstream.engine.torch.parallel.rank_group import RankGroup
from slipstream.engine.torch.row_trial import see_rows_alone
from slipstream.engine.torch.transformers_model import Whole
from slipstream.hosting.tokenizer_files import embedded_directory
from tests import tiny_models


def part_of(directory: Path, rank: int, ranks: int) -> tuple[Any, Division]:
    """Return a rank's part of a model, without the others."""
    group: Any = SimpleNamespace(rank=rank, size=ranks, device=torch.device("cpu"))
    return read_part(str(directory), group, dtype="float32")


def test_the_parts_of_all_ranks_are_the_whole_model(tmp_path: Path) -> None:
    changes = {"vocab_size": 4095, "attention_bias": True, "num_key_value_heads": 4}
    model = tiny_models.build("llama", **changes)
    directory = tiny_models.save(model, tmp_path)
    parts = [part_of(directory, rank, 4) for rank in range(4)]
    whole_bytes = sum(weight.nbytes for weight in model.state_dict().values())
    for name, weight in model.state_dict().items():
        split = parts[0][1].splits.get(name)
        held = [part.state_dict()[name] for part, _ in parts]
        joined = held[0] if split is None else torch.cat(held, split.dimension)[: len(weight)]
        assert torch.equal(joined, weight), name
    for part, _ in parts:
        assert sum(weight.nbytes for weight in part.state_dict().values()) < 0.27 * whole_bytes


@pytest.mark.parametrize(
    ("family", "changes", "ranks", "reason"),
    [
        ("llama", {}, 4, "2 key and value heads, which 4 ranks cannot divide: .* must be at most 2"),
        ("opt", {}, 2, "OPTForCausalLM has no plan of tensor parallelism in transformers"),
        (
            "phi3",
            {},
            2,
            "Phi3ForCausalLM needs .*-size 1: .* divides model.layers.0.self_attn.o_proj as 'rowwise_split_input'",
        ),
        ("mixtral", {}, 2, "MixtralForCausalLM needs .*-size 1: .* divides .*experts.* as 'moe_tp_experts'"),
    ],
)
def test_a_model_that_ranks_cannot_divide_is_refused(
    family: str, changes: dict[str, Any], ranks: int, reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        divide(tiny_models.build(family, **changes), ranks)


def test_a_model_whose_parts_cannot_be_computed_may_be_served_by_one_rank(tmp_path: Path) -> None:
    """Command R+ has norms with numbers of each head, which transformers' plan does not divide."""
    model = tiny_models.build("cohere", **tiny_models.SHAPE, use_qk_norm=True)
    directory = tiny_models.save(model, tmp_path)
    group: Any = SimpleNamespace(rank=1, size=2, device=torch.device("cpu"), sum=lambda part: part)
    loaded, division = read_part(str(directory), group, dtype="float32")
    whole = Whole(division.vocabulary_size, lambda ends: "")
    with pytest.raises(UnsupportedModelError, match=r"a trial forward failed .*; or try --tensor-parallel-size 1$"):
        planned_part(Loaded("it", loaded, {}, division, whole), group, page_size=16, exact=True)


def test_four_ranks_share_six_heads_and_a_part_that_is_short_is_filled_with_zeros() -> None:
    """Parts of the embedded target: 64 features a head, 1,024 columns, 4,096 tokens."""
    whole = load_file(embedded_directory("target") / "model.safetensors")
    whole["lm_head.weight"] = whole["model.embed_tokens.weight"]  # one matrix
    parts = [part_of(embedded_directory("target"), rank, 4) for rank in range(4)]
    for name, split in parts[0][1].splits.items():
        held = [part.state_dict()[name] for part, _ in parts]
        assert {each.shape for each in held} == {held[0].shape}
        sizes = [split.own(rank).stop - split.own(rank).start for rank in range(4)]
        assert sizes == ([128, 64, 128, 64] if "self_attn" in name else [whole[name].shape[split.dimension] // 4] * 4)
        own = [each.narrow(split.dimension, 0, size) for each, size in zip(held, sizes, strict=True)]
        assert torch.equal(torch.cat(own, split.dimension), whole[name].float()), name
        filled = [
            each.narrow(split.dimension, size, split.width - size) for each, size in zip(held, sizes, strict=True)
        ]
        assert not torch.cat(filled, split.dimension).any(), name


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("lm_head.weight", None, "lacks 1 of LlamaForCausalLM's tensors: lm_head.weight"),
        ("model.norm.weight", torch.ones(65), r"model.norm.weight is \[65\] instead of \[64\]"),
        (
            "model.layers.1.mlp.down_proj.weight",
            torch.ones(64, 64),
            r"down_proj.weight is \[64, 64\] instead of \[64, 128\]",
        ),
        ("model.norm.weight", torch.full((64,), torch.nan), "weights that are NaN or infinite, in model.norm.weight"),
    ],
)
def test_a_damaged_checkpoint_is_refused(name: str, changed: torch.Tensor | None, reason: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    tensors = load_file(directory / "model.safetensors")
    del tensors[name]
    save_file(tensors if changed is None else tensors | {name: changed}, directory / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=reason):
        part_of(directory, 1, 2)


def test_ranks_with_different_checkpoints_are_refused() -> None:
    class Told(RankGroup):
        def __init__(self) -> None:
            self.size = 2

        def _told(self, numbers: torch.Tensor) -> torch.Tensor:
            return torch.stack([numbers, numbers + torch.tensor([0, 1])])

    with pytest.raises(UnsupportedModelError, match="rank 1 has another page size than rank 0"):
        Told().agree([("checkpoint", "a"), ("page size", 16)])


def test_a_group_whose_rows_depend_on_one_another_is_refused() -> None:
    facts = SimpleNamespace(architecture="Llama", dtype="float32", device="cpu", vocabulary_size=64, context_length=64)

    class Mixed:
        model = facts
        trembles_at = 5

        def forward(self, segments: list[Segment]) -> np.ndarray:
            rows = np.concatenate([np.add.outer(segment.tokens, np.arange(64.0)) for segment in segments])
            rows[:, 0] += len(rows) == self.trembles_at
            return rows.astype(np.float32)

    backend: Any = Mixed()
    see_rows_alone(backend, Reserved(page_count=8, page_size=16, byte_count=0), "try another")
    for count in (96, 48, 28, 12):  # in a batch, in a smaller one, in chunks
        backend.trembles_at = count
        with pytest.raises(UnsupportedModelError, match="a row's numbers depend on the rows beside it"):
            see_rows_alone(backend, Reserved(page_count=8, page_size=16, byte_count=0), "try another")


def test_a_step_is_sent_as_integers() -> None:
    segments = [Segment([5, 6], 14, [3, 1], 2), Segment([7], 0, [2], 1)]
    assert calls.segments_of(calls.numbers_of_segments(segments)) == segments
    copies = [PageCopy(1, 2), PageCopy(4, 3)]
    assert calls.copies_of(calls.numbers_of_copies(copies)) == copies


def test_a_process_without_a_ranks_environment_cannot_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(RankGroupError, match="WORLD_SIZE must be a number"):
        RankGroup.join(device="cpu", start_timeout=1, step_timeout=1)
