"""Each architecture through the verifier's own path against transformers' generate; what cannot be
served is refused."""

import asyncio
import itertools
import json
import random
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Llama4Config,
    Llama4ForConditionalGeneration,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from slipstream.engine.engine import Engine
from slipstream.engine.errors import STOCK_ENGINES, UnsupportedModelError
from slipstream.engine.host import EngineHost, HostLimits
from slipstream.engine.job import Statement
from slipstream.engine.pretrained.loading import read_config
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.asking import run_round
from tests.tiny_models import WINDOW
from verifier_service.verifier import VerifyJob

PAGE_SIZE = 16
PREFILL_CHUNK = 20  # no multiple of the page, and less than the window
NEW_TOKENS = 24
PROMPT_LENGTHS = (5, 21, 70)  # below a page; above a page and below the window; above both, in four chunks
assert PROMPT_LENGTHS[1] < WINDOW < PROMPT_LENGTHS[2]


@dataclass(frozen=True, slots=True)
class Oracle:
    """A model directory, prompts, and what transformers' own generate says after each."""

    directory: Path
    prompts: list[list[int]]
    continuations: list[list[int]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    # Two threads for such small matrices, in transformers' forwards and in every host's, mostly
    # wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts(vocabulary_size: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, vocabulary_size) for _ in range(length)] for length in PROMPT_LENGTHS]


def generate(directory: Path, prompt: list[int], **changes: Any) -> list[int]:
    """transformers' greedy tokens with eager attention; ``changes`` are to the model's config."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32, **changes)
    ids = torch.tensor([prompt])
    # Greedy, without the model's own end token: both sides run on past it.
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    assert len(tokens) == NEW_TOKENS
    return tokens


def consult(model: PreTrainedModel, directory: Path, texts: list[list[int]]) -> Oracle:
    model.save_pretrained(directory)
    return Oracle(directory, texts, [generate(directory, prompt) for prompt in texts])


@pytest.fixture(scope="module", params=sorted(tiny_models.FAMILIES))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    model = tiny_models.build(request.param)
    return consult(model, tmp_path_factory.mktemp(request.param), prompts(tiny_models.VOCABULARY_SIZE))


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[EngineHost[VerifyJob]]:
    """A model as the verifier serves it, without the wire."""

    def load() -> Engine:
        model = TransformersModel.load(str(directory), device="cpu", dtype="float32")
        return Engine(PlannedBackend(model, page_size=PAGE_SIZE), kv_memory_mib=4)

    host: EngineHost[VerifyJob] = EngineHost(load, BatchLimits(prefill_chunk=PREFILL_CHUNK), HostLimits())
    await host.start()
    try:
        yield host
    finally:
        await host.stop()


async def verify(
    host: EngineHost[VerifyJob], handle: str, number: int, base_length: int, tail: list[int], proposal: list[int]
) -> VerifyJob:
    """One round of the verify path: the only place here that knows the job's signature."""
    statement = Statement(base_length, tail)
    return await run_round(
        host,
        handle,
        number,
        lambda sequence: VerifyJob(sequence, statement, proposal, SamplingRule()),
        content=(statement, proposal),
    )


@dataclass(slots=True)
class Generation:
    """A generated text, and the rounds that made it."""

    tokens: list[int] = field(default_factory=list)
    adopted_count: int = 0
    adopted_pages: list[int] = field(default_factory=list)
    surprises: list[tuple[int, int]] = field(default_factory=list)
    """Accepted counts that are not what the corruption of the proposal implies: got, expected."""
    round_count: int = 0
    rejected_count: int = 0


async def converse(
    host: EngineHost[VerifyJob], committed: list[int], coming: list[int], rng: random.Random | None
) -> Generation:
    """Generate as many tokens as ``coming`` has, on a fresh sequence.

    With ``rng``, each round proposes some of the coming tokens, one of them (or none) replaced by a
    wrong one.
    """
    result = Generation()
    handle = secrets.token_hex(8)
    host.open_handle(handle, None)
    base, tail = 0, committed
    while len(result.tokens) < len(coming):
        proposal: list[int] = []
        right_count = 0
        if rng is not None:
            begin = len(result.tokens)
            proposal = coming[begin : begin + rng.randrange(7)][: len(coming) - begin - 1]
            right_count = rng.randint(0, len(proposal))
            if right_count < len(proposal):
                proposal[right_count] = (proposal[right_count] + rng.randrange(1, 200)) % 300
        job = await verify(host, handle, result.round_count, base, tail, proposal)
        if result.round_count == 0:
            result.adopted_count = len(committed) - job.prefilled_count
            result.adopted_pages = job.sequence.pages[: result.adopted_count // PAGE_SIZE]
        if job.accepted_count != right_count:
            result.surprises.append((job.accepted_count, right_count))
        result.round_count += 1
        result.rejected_count += len(proposal) - job.accepted_count
        result.tokens += [*proposal[: job.accepted_count], job.next_token]
        # As the orchestrator states it: keep what was accepted, drop the rest, then comes the
        # target's own token.
        base += len(tail) + job.accepted_count
        tail = [job.next_token]
    return result


def whole_pages(tokens: list[int]) -> int:
    """Tokens that published pages can supply: never the last one, whose logits are wanted."""
    return (len(tokens) - 1) // PAGE_SIZE * PAGE_SIZE


@pytest.mark.parametrize("speculation", [False, True], ids=["plain", "speculative"])
async def test_greedy_tokens_equal_transformers(oracle: Oracle, speculation: bool) -> None:
    def corruption(seed: int) -> random.Random | None:
        return random.Random(seed) if speculation else None

    async with served(oracle.directory) as host:
        pairs = list(zip(oracle.prompts, oracle.continuations, strict=True))
        # Together, so that steps hold several sequences; none can adopt pages of another, for
        # no two prompts begin alike.
        first = await asyncio.gather(*(converse(host, p, c, corruption(n)) for n, (p, c) in enumerate(pairs)))
        for (_, coming), result in zip(pairs, first, strict=True):
            assert (result.tokens, result.surprises, result.adopted_count) == (coming, [], 0)
            assert (result.rejected_count > 0, result.round_count < NEW_TOKENS) == (speculation, speculation)

        if speculation:
            ten = [
                (*pairs[number % len(pairs)], corruption(30 + number) if number % 2 else None) for number in range(10)
            ]
            results = await asyncio.gather(*(converse(host, prompt, coming, rng) for prompt, coming, rng in ten))
            assert [result.tokens for result in results] == [coming for _, coming, _ in ten]

        for number, (prompt, coming) in enumerate(pairs):
            again = await converse(host, prompt, coming, corruption(10 + number))
            assert (again.tokens, again.surprises) == (coming, [])
            assert again.adopted_count == whole_pages(prompt)
            # A session resumed elsewhere: it also adopts pages written in rounds that were partly
            # rolled back.
            said = prompt + coming[:-6]
            resumed = await converse(host, said, coming[-6:], corruption(20 + number))
            assert (resumed.tokens, resumed.surprises) == (coming[-6:], [])
            assert resumed.adopted_count == whole_pages(said) > whole_pages(prompt)
            assert resumed.adopted_pages[: len(again.adopted_pages)] == again.adopted_pages


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 4096}),
        ("gemma2", {"sliding_window": 4096}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma3_text", {"sliding_window": 4096}),
        ("gemma3_text", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
        ("llama4_text", {"attention_chunk_size": 4096}),
        ("llama4_text", {"attn_temperature_tuning": False}),
    ],
)
def test_what_sets_a_family_apart_shows_in_its_tokens(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    # Else the comparison above would prove nothing about windows, caps and their order.
    tiny_models.build(family).save_pretrained(tmp_path)
    prompt = prompts(tiny_models.VOCABULARY_SIZE)[-1]
    assert generate(tmp_path, prompt) != generate(tmp_path, prompt, **changes)


@pytest.mark.parametrize("multiple", [64, 128])
@pytest.mark.parametrize("family", ["llama", "gpt2"])  # an output matrix of its own, and one tied to the embedding
async def test_a_padded_vocabulary_changes_no_token(family: str, multiple: int, tmp_path: Path) -> None:
    size = 300
    model = tiny_models.build(family, vocab_size=size)
    bare = consult(model, tmp_path / "bare", prompts(size))
    model.resize_token_embeddings(pad_to_multiple_of=multiple, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[size:] = 0.0
        model.get_output_embeddings().weight[size:] = 0.0
    padded = consult(model, tmp_path / "padded", bare.prompts)
    assert padded.continuations == bare.continuations
    for oracle, vocabulary_size in ((bare, size), (padded, -(-size // multiple) * multiple)):
        async with served(oracle.directory) as host:
            assert host.engine.model.vocabulary_size == vocabulary_size
            for prompt, coming in zip(oracle.prompts, oracle.continuations, strict=True):
                assert (await converse(host, prompt, coming, random.Random(0))).tokens == coming


async def test_a_text_model_is_served_from_a_checkpoint_that_holds_one_of_images_too(tmp_path: Path) -> None:
    sight = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    sight |= {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    config = Llama4Config(
        text_config=tiny_models.FAMILIES["llama4_text"], vision_config={**sight, "image_size": 28, "patch_size": 14}
    )
    torch.manual_seed(0)
    oracle = consult(Llama4ForConditionalGeneration(config), tmp_path, prompts(tiny_models.VOCABULARY_SIZE))
    async with served(tmp_path) as host:
        for prompt, coming in zip(oracle.prompts, oracle.continuations, strict=True):
            assert (await converse(host, prompt, coming, random.Random(0))).tokens == coming


def refused(directory: Path) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        TransformersModel.load(str(directory), device="cpu", dtype="float32")
    return str(caught.value)


def test_a_missing_directory_is_named() -> None:
    assert refused(Path("/no/such/model")).startswith("no model directory at /no/such/model: ")


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    assert "has no config.json" in refused(tmp_path)


def test_an_encoder_decoder_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = {"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refused(tmp_path) == (
        "T5ForConditionalGeneration is an encoder-decoder; only decoder-only models can be served"
    )


LAYERS = "has layers of {}; only full, sliding-window and chunked attention can be served here"
OWN_CLASSES = (
    "has attention classes of its own; only attention through transformers' attention interface can be served here"
)
SMALL = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 512}
NARROW = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}
ENDS = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": (
        {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 4},
        "MambaForCausalLM " + LAYERS.format("linear_attention"),
    ),
    "jamba": (
        {**GROUPED, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4},
        "JambaForCausalLM " + LAYERS.format("linear_attention"),
    ),
    "recurrent_gemma": (
        {**SMALL, "num_hidden_layers": 3, "attention_window_size": WINDOW, "intermediate_size": 128},
        "RecurrentGemmaForCausalLM " + LAYERS.format("linear_attention"),
    ),
    "lfm2": (
        {**GROUPED, "layer_types": ["conv", "full_attention"]},
        "Lfm2ForCausalLM " + LAYERS.format("conv"),
    ),
    "falcon": (SMALL, "FalconForCausalLM " + OWN_CLASSES),
    "gptj": (NARROW, "GPTJForCausalLM " + OWN_CLASSES),
    "codegen": (
        NARROW,
        "CodeGenForCausalLM sends 0 of its 2 layers through transformers' attention interface; "
        "recurrent or private attention cannot be served here",
    ),
    "stablelm": (
        GROUPED,
        "StableLmForCausalLM cannot be served here: StableLmAttention does not pass keyword arguments on to its attention",
    ),
    "doge": (
        GROUPED,
        "DogeForCausalLM cannot be served here: DogeAttention brings an attention mask or bias of its own",
    ),
    "diffllama": (
        GROUPED,
        "DiffLlamaForCausalLM cannot be served here: DiffLlamaAttention attends more than once in a layer",
    ),
    "bert": (
        {**SMALL, "intermediate_size": 128},
        "BertLMHeadModel cannot be served here: BertSelfAttention also attends to later tokens",
    ),
    "bart": (
        {"vocab_size": 300, "d_model": 64, "decoder_layers": 2, "decoder_ffn_dim": 128, "decoder_attention_heads": 4},
        "BartForCausalLM does not accept token positions (no position_ids)",
    ),
    "xlstm": (
        {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4},
        "xLSTMForCausalLM cannot give logits at chosen rows (no logits_to_keep)",
    ),
}
"""Model types that load in transformers: what makes each tiny, and the sentence that refuses it,
before the way out."""


@pytest.mark.parametrize("family", sorted(REFUSALS))
def test_what_would_be_computed_wrongly_is_refused_with_the_reason(family: str, tmp_path: Path) -> None:
    shape, sentence = REFUSALS[family]
    tiny_models.build(family, **{**ENDS, **shape}).save_pretrained(tmp_path)
    assert refused(tmp_path) == f"{sentence}; {STOCK_ENGINES}"


STATES = {
    "linear_attention": [
        *("bailing_hybrid", "bamba", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "mamba", "mamba2"),
        *("minimax", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next", "recurrent_gemma", "zamba2"),
    ],
    "conv": ["lfm3"],
    "hybrid": ["falcon_h1", "zamba", "zaya"],
    "indexed_attention": ["axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "qwen4_exp"],
    "compressed_sparse_attention": ["deepseek_v4"],
}
"""Kinds of layers that are not served, and model types that have them by default."""


@pytest.mark.parametrize("kind", STATES)
def test_layers_with_a_state_or_an_index_are_refused_by_the_config_alone(kind: str, tmp_path: Path) -> None:
    for family in STATES[kind]:
        config = AutoConfig.for_model(family)
        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]]
        config.save_pretrained(tmp_path)
        with pytest.raises(UnsupportedModelError) as caught:
            read_config(tmp_path, family)
        told = str(caught.value)
        assert told.startswith(f"{config.architectures[0]} has layers of ") and told.endswith(f"; {STOCK_ENGINES}")
        assert kind in told


def test_the_guide_has_every_kind_of_model_where_it_belongs() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "models.md").read_text(encoding="utf-8")
    table = guide.split("## Kinds of models")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    named: dict[bool, set[str]] = {False: set(), True: set()}
    for row in rows:
        _, _, types, what, _ = row.split("|")
        named["refused" in what] |= set(re.findall(r"`(\w+)`", types))
    assert named[False] == set(tiny_models.FAMILIES)
    assert named[True] == {*REFUSALS, *itertools.chain(*STATES.values()), "t5"}
