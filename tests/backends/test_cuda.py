"""The CUDA backend's parts without such a device: its kernel by Triton's interpreter, in float32;
what it lays out and splits.

Bits, graphs and bfloat16 are seen on a device (tests/gpu).
"""

import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM

pytest.importorskip("triton", reason="Triton is there on Linux")

from triton.runtime.errors import OutOfResources

from slipstream.engine.engine import Engine
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Segment
from slipstream.engine.pretrained.loading import load_pretrained
from slipstream.engine.pretrained.windows import WHOLE, Sight
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.attention import NAME, Scoring
from slipstream.engine.torch.cuda import attention
from slipstream.engine.torch.cuda.backend import CudaBackend
from slipstream.engine.torch.cuda.fusing import Fused, fuse
from slipstream.engine.torch.cuda.norms import FusedRmsNorm, fuse_norms
from slipstream.engine.torch.cuda.step import (
    CHUNK,
    LONG_AFTER,
    LONG_CHUNK,
    PIECE,
    QUERIES,
    Step,
    chunk_count,
    split,
)
from slipstream.engine.torch.kv_memory import KvMemory, LayerShape
from slipstream.engine.torch.transformers_model import TransformersModel
from tests import tiny_models
from tests.tensors import tensor_of

pytestmark = [
    pytest.mark.usefixtures("products_by_row"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp"),  # a device reports none
]
CPU = torch.device("cpu")
ROWS = 8


def test_a_step_has_its_rows_queries_and_pages_where_it_says() -> None:
    step = Step(32, 4, 8, CPU)
    step.lay_out([Segment([7] * 32, 0, [9, 8, 7, 6, 5, 4, 3, 2], 32)])  # of which nothing may be left
    first = Segment([11, 12, 13], 6, [5, 3, 2], 2)
    second = Segment(list(range(20, 38)), 0, [1, 4, 6, 7, 8, 9], 1)
    assert step.lay_out([first, second]) == 3
    assert step.input_ids[0, :21].tolist() == [11, 12, 13, *range(20, 38)]
    assert step.positions[0, :21].tolist() == [6, 7, 8, *range(18)]
    assert step.slots[:5].tolist() == [3 * 4 + 2, 3 * 4 + 3, 2 * 4, 1 * 4, 1 * 4 + 1]
    assert step.slots[21:].tolist() == [0] * 11  # padding goes where nothing is read
    assert step.logit_rows[:3].tolist() == [1, 2, 20]
    assert step.piece_count.tolist() == [3]
    pieces = step.pieces.view(-1, PIECE)[:3].tolist()
    assert pieces == [[0, 3, 6, 0, 0, 1], [3, QUERIES, 0, 3, 0, 1], [3 + QUERIES, 18 - QUERIES, QUERIES, 3, 0, 1]]
    assert step.chunk_counts.tolist() == [1] * 21 + [0] * 11
    assert step.tables[:8].tolist() == [5, 3, 2, 1, 4, 6, 7, 8]


def test_many_keys_are_attended_to_in_chunks() -> None:
    assert [chunk_count(length) for length in (1, CHUNK, CHUNK + 1)] == [1, 1, 2]
    long = LONG_AFTER * CHUNK
    assert [chunk_count(length) for length in (long, long + 1, long + LONG_CHUNK, long + LONG_CHUNK + 1)] == [
        16,
        17,
        17,
        18,
    ]
    step = Step(8, 16, 2 * CHUNK // 16, CPU)
    assert step.most_chunks == 2
    step.lay_out([Segment([1] * 3, CHUNK - 1, list(range(1, 40)), 3), Segment([2], 0, [40], 1)])
    pieces = step.pieces.view(-1, PIECE)[: step.piece_count].tolist()
    assert pieces == [[0, 3, CHUNK - 1, 0, 0, 2], [0, 3, CHUNK - 1, 0, 1, 2], [3, 1, 0, 33, 0, 1]]
    assert step.chunk_counts.tolist() == [2, 2, 2, 1, 0, 0, 0, 0]


def test_programs_take_several_pieces_where_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    memory = KvMemory([LayerShape(2, 16, 16, 1)], 80, 16, torch.float32, CPU)
    memory.keys[0].normal_()
    memory.values[0].normal_()
    step = Step(32, 16, 40, CPU)
    step.lay_out(
        [
            Segment([0] * 20, 505, list(range(1, 40)), 0),
            Segment([0] * 3, 0, [40], 0),
            Segment([0], 515, list(range(41, 80)), 0),
        ]
    )
    assert step.piece_count.item() == 7
    rows = torch.randn(2, 32, 16).transpose(0, 1)
    by_many = attention.PAGED.attend(step, memory, 0, rows, Scoring(0.3))
    monkeypatch.setattr(attention, "_PROGRAMS", 6)  # three for each head
    assert torch.equal(attention.PAGED.attend(step, memory, 0, rows, Scoring(0.3)), by_many)


@pytest.mark.parametrize(
    ("sight", "sinks"),
    [(WHOLE, None), (Sight(window=700), None), (Sight(chunk=600), torch.tensor([0.5, 30.0]))],
    ids=["whole", "window", "chunk and sinks"],
)
def test_a_row_has_the_same_bits_however_many_chunks_are_attended_to_beside_it(
    sight: Sight, sinks: torch.Tensor | None
) -> None:
    """And they are those of its keys: also beyond the short chunks."""
    torch.manual_seed(0)
    shape, size, long = LayerShape(1, 16, 16, 2), 64, LONG_AFTER * CHUNK + LONG_CHUNK
    page_count = long // size + 1
    memory = KvMemory([shape], page_count, size, torch.float32, CPU)
    memory.keys[0].normal_()
    memory.values[0].normal_()
    pages = random.Random(0).sample(range(1, page_count + 1), page_count)
    rows = torch.randn(2, 8, 16).transpose(0, 1)
    for first in (CHUNK - 2, long - 2):  # four rows, of which the last two have a chunk more
        step = Step(8, size, page_count, CPU)
        step.lay_out([Segment([0] * 4, first, pages, 4)])
        scoring = Scoring(0.3, sight, sinks=sinks)
        together = attention.PAGED.attend(step, memory, 0, rows, scoring)
        assert step.chunk_counts[0] > chunk_count(first + 1)
        for row in (1, 3):
            step.lay_out([Segment([0], first + row, pages, 1)])
            alone = attention.PAGED.attend(step, memory, 0, rows[row:].contiguous(), scoring)
            assert torch.equal(alone[0], together[row])
        keys, values = (
            of[0].flatten(1, 2).view(-1, size, 16)[pages].flatten(0, 1) for of in (memory.keys, memory.values)
        )
        seen = slice(max(0, int(sight.first_keys(torch.tensor(first)))), first + 1)
        scores = rows[0] @ keys[seen].T * 0.3
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None]], dim=-1)
        expected = scores.softmax(-1)[:, : len(values[seen])] @ values[seen]
        torch.testing.assert_close(together[0], expected, rtol=1e-4, atol=1e-5)


counts = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=6)


@given(counts)
def test_forwards_take_turns_at_all_rows(counted: list[tuple[int, int]]) -> None:
    segments = [
        Segment([(index, place) for place in range(count)], 3, [index], min(count, wanted))  # type: ignore[misc]
        for index, (count, wanted) in enumerate(counted)
    ]
    parts = split(segments, 16)
    assert all(sum(len(segment.tokens) for segment in part) == 16 for part in parts[:-1])
    assert 0 < sum(len(segment.tokens) for segment in parts[-1]) <= 16
    for index, whole in enumerate(segments):
        own = [segment for part in parts for segment in part if segment.pages == [index]]
        assert [token for segment in own for token in segment.tokens] == whole.tokens
        assert own[0].start == 3 and all(one.end == other.start for one, other in pairwise(own))
        wanted = [token for segment in own if segment.wanted for token in segment.tokens[-segment.wanted :]]
        assert wanted == whole.tokens[len(whole.tokens) - whole.wanted :]


@pytest.mark.parametrize(
    ("shape", "scoring"),
    [
        (LayerShape(2, 16, 16, 1), Scoring(0.3)),
        (LayerShape(1, 24, 24, 4), Scoring(0.3, Sight(window=9))),  # a size that is no power of two
        (LayerShape(2, 16, 8, 3), Scoring(0.3, softcap=2.0)),  # as many queries to a key head
        (LayerShape(1, 16, 16, 71), Scoring(0.3)),  # more than a tile's rows
        (LayerShape(2, 16, 16, 2), Scoring(0.3, Sight(window=9), sinks=torch.tensor([-2.0, 0.0, 1.0, 40.0]))),
        (LayerShape(1, 16, 16, 2), Scoring(0.3, Sight(chunk=12))),
    ],
)
def test_the_kernel_attends_to_what_it_may(shape: LayerShape, scoring: Scoring) -> None:
    torch.manual_seed(0)
    softcap, sinks = scoring.softcap, scoring.sinks
    size = 4
    memory = KvMemory([shape], 40, size, torch.float32, CPU)
    memory.keys[0].normal_()
    memory.values[0].normal_()
    pages = random.Random(0).sample(range(1, 41), 40)
    segments = [
        Segment([0] * 3, 68, pages[:18], 0),
        Segment([0], 0, pages[18:19], 0),
        Segment([0] * 20, 5, pages[19:26], 0),
    ]
    step = Step(32, size, 40, CPU)
    step.lay_out(segments)
    heads = shape.head_count * shape.queries_per_key
    rows = torch.randn(heads, 32, shape.key_size).transpose(0, 1)
    attended = attention.PAGED.attend(step, memory, 0, rows, scoring)
    assert attended.shape == (32, heads, shape.value_size)
    row = 0
    for segment in segments:
        at = torch.tensor([segment.pages[place // size] * size + place % size for place in range(segment.end)])
        keys, values = (memory_of[0].flatten(1, 2)[:, at] for memory_of in (memory.keys, memory.values))
        for position in range(segment.start, segment.end):
            seen = slice(max(0, int(scoring.sight.first_keys(torch.tensor(position)))), position + 1)
            query = rows[row].view(shape.head_count, shape.queries_per_key, -1)
            scores = torch.einsum("hrd,hkd->hrk", query, keys[:, seen]) * 0.3
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            if sinks is not None:
                scores = torch.cat([scores, sinks.view(*scores.shape[:2], 1)], dim=-1)
            weights = scores.softmax(-1)[..., : values[:, seen].shape[1]]
            expected = torch.einsum("hrk,hkd->hrd", weights, values[:, seen]).reshape(heads, -1)
            torch.testing.assert_close(attended[row], expected, rtol=1e-5, atol=1e-5)
            row += 1
    assert not attended[row:].any()


FUSED = {
    "llama": Fused(5, 2, 2, 2),
    "gemma2": Fused(0, 4, 4, 0),
    "gpt2": Fused(0, 0, 0, 0),
    "gpt_oss": Fused(5, 0, 2, 0),  # with sinks
    "llama4_text": Fused(0, 0, 4, 4),  # with chunks
}


@pytest.mark.parametrize("family", FUSED)
def test_logits_are_the_models_own(family: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    own = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    loaded = load_pretrained(str(directory), device="cpu", dtype="float32", attention=NAME)
    assert fuse(loaded) == FUSED[family]
    model = TransformersModel(loaded, {}, kernels=attention.PAGED)
    engine = Engine(CudaBackend(model, page_size=16, row_counts=(ROWS // 2, ROWS)), kv_memory_mib=4)
    texts = [[random.Random(index).randrange(4096) for _ in range(count)] for index, count in enumerate((14, 5))]
    sequences = [Sequence(str(index)) for index in range(len(texts))]
    found: list[list[torch.Tensor]] = [[], []]
    for begin, end in ((0, 10), (10, 11), (11, 14)):  # 15 rows at first, of 8 that a forward has
        segments = []
        for sequence, text in zip(sequences, texts, strict=True):
            tokens = text[begin:end]
            if tokens:
                start = len(sequence)
                engine.cache.extend(sequence, tokens)
                segments.append(Segment(tokens, start, sequence.pages, len(tokens)))
        logits = engine.backend.forward(segments)
        parts = tensor_of(logits).clone().split([len(segment.tokens) for segment in segments])
        for kept, part in zip(found, parts, strict=False):
            kept.append(part)
    for kept, text in zip(found, texts, strict=True):
        with torch.inference_mode():
            expected = own(torch.tensor([text])).logits[0]
        torch.testing.assert_close(torch.cat(kept), expected, rtol=1e-3, atol=1e-3)


def test_a_target_whose_rows_depend_on_others_is_refused(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    loaded = load_pretrained(str(directory), device="cpu", dtype="float32", attention=NAME)
    model = TransformersModel(loaded, {}, kernels=attention.PAGED)
    own = model.compute

    def mixed(step: Step) -> torch.Tensor:
        logits = own(step)
        return logits + logits.mean(dim=0) * 1e-6

    model.compute = mixed  # type: ignore[assignment, method-assign]
    draft = CudaBackend(model, page_size=16, row_counts=(8, 64))
    assert draft.reserve(4).page_count > 1
    target = CudaBackend(model, page_size=16, row_counts=(80,))
    with pytest.raises(
        UnsupportedModelError, match="LlamaForCausalLM in float32 on cpu: a row's numbers depend on the rows"
    ):
        target.reserve(4)


@pytest.mark.parametrize(("page_size", "memory_mib"), [(16, 4), (128, 0.4), (128, 0.13)])
def test_what_is_tried_at_load_writes_to_no_place_twice(page_size: int, memory_mib: float, tmp_path: Path) -> None:
    """For what is then in it would differ from forward to forward, and so would a recording from
    what it records."""
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    loaded = load_pretrained(str(directory), device="cpu", dtype="float32", attention=NAME)
    model = TransformersModel(loaded, {}, kernels=attention.PAGED)
    written: list[list[int]] = []

    def watched(step: Step) -> torch.Tensor:
        rows = int((step.chunk_counts > 0).sum())
        written.append(step.slots[:rows].tolist())
        return torch.zeros(step.row_count, model.vocabulary_size)

    model.compute = watched  # type: ignore[assignment, method-assign]
    reserved = CudaBackend(model, page_size=page_size, row_counts=(80,)).reserve(memory_mib)
    assert len(written) == (4 if reserved.page_count >= 3 else 0)
    for slots in written:
        assert len(set(slots)) == len(slots) and min(slots) >= page_size


def test_a_draft_has_the_memory_of_all_its_steps_from_its_load(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    loaded = load_pretrained(str(directory), device="cpu", dtype="float32", attention=NAME)
    backend = CudaBackend(TransformersModel(loaded, {}, kernels=attention.PAGED), page_size=16, row_counts=(1, 8))
    backend.reserve(4)
    steps = [forward.step for forward in backend._forwards.values()]
    assert [step.row_count for step in steps] == [1, 8]
    assert all(step.most_chunks > 1 and step._partial for step in steps)


def test_norms_are_fused_where_that_is_what_they_do(tmp_path: Path) -> None:
    llama, gemma = tiny_models.build("llama"), tiny_models.build("gemma2")
    for model in (llama, gemma):
        for name, weight in model.named_parameters():
            if "norm" in name:
                nn.init.normal_(weight)
    assert fuse_norms(llama) == 5
    assert sum(isinstance(module, FusedRmsNorm) for module in llama.modules()) == 5
    assert fuse_norms(gemma) == 0  # one is added to its weights


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_what_cannot_launch_kernels_says_what_it_wants() -> None:
    with pytest.raises(UnsupportedModelError, match=r"needs a C compiler .gcc, clang or what CC names. .*: .*driver"):
        attention.compile_launcher()


def test_a_kernel_that_does_not_fit_a_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class TooLarge:
        def __getitem__(self, grid: object) -> object:
            def launch(*_: object, **__: object) -> None:
                raise OutOfResources(300_000, 101_376, "shared memory")

            return launch

    monkeypatch.setattr(attention, "_attend", TooLarge())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a small one")
    memory = KvMemory([LayerShape(1, 16, 16)], 2, 16, torch.float32, CPU)
    with pytest.raises(
        UnsupportedModelError, match=r"heads of 16 in float32 does not fit a small one: .*shared memory"
    ):
        attention.PAGED.attend(Step(8, 16, 2, CPU), memory, 0, torch.zeros(8, 1, 16), Scoring(1.0))
