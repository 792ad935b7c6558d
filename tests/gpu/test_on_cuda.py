"""What only a CUDA device can show: bits, graphs, bfloat16. ``make gpu`` runs these where there is
one."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from slipstream.engine.engine import Append, Engine
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Segment
from slipstream.engine.pretrained.loading import DTYPES, load_pretrained
from slipstream.engine.pretrained.quantisation import Quantisation
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.attention import NAME
from slipstream.engine.torch.cuda.backend import EXACT_ROWS, CudaBackend, load_cuda
from slipstream.engine.torch.cuda.chooser import Chooser
from slipstream.engine.torch.cuda.fusing import Fused, fuse
from slipstream.engine.torch.cuda.logits import find_maxima
from slipstream.sampling.row import Choice, Row
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.tensors import blocked, choose, tensor_of

LENGTHS = (3, 40, 200, 1, 90, 700, 17)
ROUND = 9


class Computed:
    """A tiny model on the device."""

    def __init__(
        self, directory: Path, dtype: str, *, exact: bool = True, page_size: int = 16, device: str = "cuda"
    ) -> None:
        self.backend: CudaBackend = load_cuda(
            str(directory), device=device, dtype=dtype, page_size=page_size, exact=exact
        )
        self.engine = Engine(self.backend, kv_memory_mib=16)

    def forward(self, sequences: list[Sequence], tokens: list[list[int]]) -> list[torch.Tensor]:
        """Append; the logits after each token, sequence by sequence."""
        segments = []
        for sequence, added in zip(sequences, tokens, strict=True):
            start = len(sequence)
            self.engine.cache.extend(sequence, added)
            segments.append(Segment(added, start, sequence.pages, len(added)))
        self.backend.copy_pages(self.engine.cache.take_copies())
        return list(tensor_of(self.backend.forward(segments)).clone().split([len(added) for added in tokens]))


def drawn(counts: tuple[int, ...], seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(tiny_models.VOCABULARY_SIZE) for _ in range(count)] for count in counts]


MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Whose experts multiply as many rows as have chosen them: in float32 by what is fastest for so
many."""

OTHER_MIXTURES = ("deepseek_v2", "deepseek_v3", "gpt_oss", "granitemoe", "granitemoe_swa", "mimo_v2_flash", "olmoe")
"""Families with experts that no device has refused or passed in float32 yet."""

KINDS = [
    (family, dtype)
    for family in tiny_models.FAMILIES
    for dtype in ("float32", "bfloat16")
    if not (family in (*MIXTURES, *OTHER_MIXTURES) and dtype == "float32")
]


@pytest.mark.parametrize("family", MIXTURES)
def test_a_model_whose_rows_depend_on_others_is_refused(family: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    with pytest.raises(
        UnsupportedModelError, match="in float32 on cuda:0: a row's numbers depend on the rows beside it"
    ):
        Computed(directory, "float32")
    Computed(directory, "float32", exact=False)  # a draft only guesses


@pytest.mark.parametrize(("family", "dtype"), KINDS)
def test_a_row_has_the_same_bits_in_every_batch(family: str, dtype: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    computed = Computed(directory, dtype)
    prompts, rounds = drawn(LENGTHS, 0), drawn((ROUND,) * len(LENGTHS), 1)
    together = [Sequence(f"together {index}") for index in range(len(LENGTHS))]
    after_prompts = computed.forward(together, prompts)
    after_rounds = computed.forward(together, rounds)
    for other in (computed, Computed(directory, dtype, page_size=8)):
        for index, (prompt, tokens) in enumerate(zip(prompts, rounds, strict=True)):
            alone = Sequence(f"alone {index}")
            assert torch.equal(other.forward([alone], [prompt])[0], after_prompts[index])
            one_by_one = torch.cat([other.forward([alone], [[token]])[0] for token in tokens])
            assert torch.equal(one_by_one, after_rounds[index])
            other.engine.cache.release(alone)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_another_than_the_first_device_computes(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    text = drawn((40,), 0)
    first = Computed(directory, "bfloat16").forward([Sequence("a")], text)[0]
    second = Computed(directory, "bfloat16", device="cuda:1")
    for index in range(8):
        assert torch.equal(second.forward([Sequence(str(index))], text)[0], first)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forwards_are_recorded_and_say_what_the_modules_say(dtype: str, exact: bool, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    computed = Computed(directory, dtype, exact=exact)
    sequences = [Sequence(str(index)) for index in range(3)]
    computed.forward(sequences, drawn((50, 7, 20), 0))
    for turn in range(12):
        computed.forward(sequences, drawn((1, 1, 1), turn))
        for forward in computed.backend._forwards.values():
            with torch.inference_mode():
                logits = forward().clone()
                torch.cuda.synchronize()
                assert torch.equal(logits, forward._compute(forward.step))
    assert computed.backend._forwards[EXACT_ROWS[0] if exact else 8]._graph is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "fused"), [("llama", Fused(5, 2, 2, 2)), ("gemma2", Fused(0, 4, 4, 0))])
def test_parts_are_fused_in_either_dtype(family: str, fused: Fused, dtype: str, tmp_path: Path) -> None:
    """Rotary positions only where they have the modules' own bits."""
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    assert fuse(load_pretrained(str(directory), device="cuda", dtype=dtype, attention=NAME)) == fused


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_maxima_are_those_that_a_cpu_finds(dtype: str) -> None:
    logits = (torch.randn(70, 100_003, generator=torch.Generator().manual_seed(0)) * 3).to(DTYPES[dtype])
    logits[3, 70], logits[4, 90] = float("nan"), float("-inf")
    found, expected = find_maxima(logits.cuda()).cpu(), torch.from_numpy(blocked(logits).maxima)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "mistral"])
def test_logits_are_about_a_cpus(family: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    text = drawn((70,), 3)[0]
    found = Computed(directory, "float32").forward([Sequence("a")], [text])[0]
    with torch.inference_mode():
        plain = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",  # another may leave out a cap
        ).eval()
        expected = plain(torch.tensor([text])).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)


SAMPLED = {
    "likeliest": SamplingRule(),
    "drawn": SamplingRule(temperature=0.8),
    "top-k": SamplingRule(temperature=0.7, top_k=20),
    "top-p": SamplingRule(temperature=0.8, top_p=0.95),
    "all": SamplingRule(temperature=0.6, top_k=50, top_p=0.9, min_p=0.02),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SAMPLED)
def test_a_draft_chooses_there_what_the_host_chooses(name: str, dtype: str) -> None:
    """A logarithm's last bit may differ; of what a top-p has not settled after two more races it
    takes the third winner."""
    rows, steps, size = 32, 3, 128_256
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(rows, size, generator=generator) * 3).to(DTYPES[dtype])
    logits[torch.arange(rows), torch.arange(rows) * 4000] = 18.0  # as sure as a model is
    rules = [replace(SAMPLED[name], seed=row) for row in range(rows)]
    chooser = Chooser(size, rows, torch.device("cuda"))
    chooser.begin_run(rules, list(range(rows)), steps)
    for _ in range(steps):
        chooser.choose(logits.cuda())
    pairs: list[tuple[Choice, Choice]] = []
    for step, ours in enumerate(chooser.fetch()):
        theirs = choose(logits, [Row(rule, row + step, (), drafting=True) for row, rule in enumerate(rules)])
        pairs += zip(ours, theirs, strict=True)
    same = [(ours, theirs) for ours, theirs in pairs if ours.token == theirs.token]
    assert len(same) >= 0.97 * len(pairs)
    assert all(ours.logprob == pytest.approx(theirs.logprob, abs=1e-3) for ours, theirs in same)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_steps_in_one_go_are_those_steps(dtype: str, tmp_path: Path) -> None:
    """To the token, where nothing is nearly as good: graphs and places are the same, and only who
    chooses is another."""
    engine = Computed(tiny_models.save(tiny_models.build("llama"), tmp_path), dtype, exact=False).engine
    runner, count, rows = engine.backend.multi_step_runner, 40, 3
    rules = [SamplingRule(temperature=0.8, seed=row) if row else SamplingRule() for row in range(rows)]
    found = []
    for turn, chosen_by in enumerate((None, runner, runner)):
        engine.backend.multi_step_runner = chosen_by
        sequences = [Sequence(f"{turn} {row}") for row in range(rows)]
        for sequence, text in zip(sequences, drawn((500, 40, 7), 0), strict=True):  # past a chunk's end
            engine.cache.extend(sequence, text)
        appends = [Append(sequence, len(sequence), 1, SamplingRule(), drafting=True) for sequence in sequences]
        engine.step(appends)
        for sequence in sequences:
            engine.cache.extend(sequence, [11])
        appends = [Append(sequence, 1, 1, rule, drafting=True) for sequence, rule in zip(sequences, rules, strict=True)]
        answers = engine.run_multi_step(appends, count)
        found.append([[answer.choices[0] for answer in steps] for steps in answers])
        assert [list(sequence.tokens[-count + 1 :]) for sequence in sequences] == [
            [choice.token for choice in choices[:-1]] for choices in found[-1]
        ]
        for sequence in sequences:
            engine.cache.release(sequence)
    for others in found[1:]:
        for expected, got in zip(found[0], others, strict=True):
            parted = next((at for at in range(count) if got[at].token != expected[at].token), count)
            assert parted == count or expected[parted].margin < 1e-3


@pytest.mark.parametrize("kind", ["int8", "int4", "nf4"])
def test_a_quantised_draft_chooses_in_runs_and_from_a_graph_if_it_can(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torchao" if kind.startswith("int") else "bitsandbytes")
    shape = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}  # four bits come in groups of 128
    directory = tiny_models.save(tiny_models.build("llama", **shape), tmp_path / "plain")
    quantisation = Quantisation("torchao", kind)
    if kind == "nf4":
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        model = AutoModelForCausalLM.from_pretrained(directory, quantization_config=config, device_map={"": "cuda"})
        directory, quantisation = tmp_path / "nf4", Quantisation("bitsandbytes")
        model.save_pretrained(directory)
    backend = load_cuda(
        str(directory), device="cuda", dtype="bfloat16", page_size=16, exact=False, quantisation=quantisation
    )
    engine, sequence = Engine(backend, kv_memory_mib=16), Sequence("draft")
    engine.cache.extend(sequence, drawn((40,), 0)[0])
    append = Append(sequence, 40, 1, SamplingRule(), drafting=True)
    chosen = [answers[0].choices[0].token for answers in zip(*engine.steps([append], 8), strict=True)]
    assert len(chosen) == 8
    plain = Computed(tmp_path / "plain", "bfloat16", exact=False)
    (logits,) = plain.forward([Sequence("plain")], [drawn((40,), 0)[0]])
    likeliest = logits[-1].float().topk(64).indices.tolist()
    assert chosen[0] in likeliest
