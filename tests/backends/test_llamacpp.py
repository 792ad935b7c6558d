"""llama.cpp as a backend: a row's bits depend on its sequence alone, and what cannot be served is
said in a line."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.llamacpp_models import convert
from slipstream import stages
from slipstream.engine.engine import Append, Engine
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.llamacpp import libllama
from slipstream.engine.llamacpp.backend import LlamaCppBackend
from slipstream.engine.llamacpp.gguf_model import GgufModel
from slipstream.engine.model import Segment
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.sampling.faults import LogitsNotFiniteError
from slipstream.sampling.rule import SamplingRule
from tests import gguf_models
from tests.tensors import tensor_of

LENGTH = 90
_RANDOM = random.Random(18)
TEXT = [_RANDOM.randrange(3, 4000) for _ in range(LENGTH)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    directory = tmp_path_factory.mktemp("gguf")

    def file(weights: str) -> Path:
        path = directory / weights / "target.gguf"
        return path if path.exists() else convert(embedded_directory("target"), path, weights)

    return file


@pytest.fixture(scope="module", params=["F32", "BF16", "Q8_0", "qwen2", "qwen3", "llama"])
def engine(
    request: pytest.FixtureRequest, files: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Engine:
    """Of the embedded target by its weights' type, or of wide layers by its architecture, queries
    sharing their keys."""
    if request.param[0].isupper():
        return engine_of(files(request.param))
    weights = {"qwen2": "BF16", "qwen3": "Q8_0", "llama": "F32"}[request.param]
    return engine_of(gguf_models.write(tmp_path_factory.mktemp("wide") / "model.gguf", request.param, weights))


def engine_of(path: Path, *, exact: bool = True, mib: float = 200) -> Engine:
    return Engine(LlamaCppBackend(path, threads=2, most_tokens=256, exact=exact), kv_memory_mib=mib)


def logits_of(
    engine: Engine, counts: Sequence[int], other: Callable[[int], int] | None = None, wanted: int | None = None
) -> torch.Tensor:
    """The text's logits, so many tokens a step, beside another sequence with as many as ``other``
    says."""
    rng = random.Random(7)
    mine, theirs = CachedSequence("mine"), CachedSequence("theirs")
    found: list[torch.Tensor] = []
    for count in counts:
        parts = [(mine, TEXT[len(mine) : len(mine) + count])]
        if other is not None:
            if len(theirs) > LENGTH:
                engine.cache.truncate(theirs, rng.randrange(LENGTH))
            parts.insert(rng.randrange(2), (theirs, [rng.randrange(3, 4000) for _ in range(other(count))]))
        segments = []
        for sequence, tokens in parts:
            start = len(sequence)
            engine.cache.extend(sequence, tokens)
            row_count = len(tokens) if wanted is None else min(wanted, len(tokens))
            segments.append(Segment(tokens, start, sequence.pages, row_count))
        engine.backend.copy_pages(engine.cache.take_copies())
        rows = tensor_of(engine.backend.forward(segments)).split([segment.wanted for segment in segments])
        found.append(rows[[sequence for sequence, _ in parts].index(mine)])
    for sequence in (mine, theirs):
        engine.cache.release(sequence)
    return torch.cat(found)


@pytest.mark.parametrize(
    ("counts", "other"),
    [
        ([1] * LENGTH, None),
        ([2] * 45, None),
        ([7] * 12 + [6], None),
        ([64, 26], None),
        ([1] * LENGTH, lambda count: 1),
        ([5] * 18, lambda count: 5),
        ([5] * 18, lambda count: 4),
        ([9] * 10, lambda count: 20),
    ],
    ids=["one by one", "twos", "sevens", "chunks", "beside one", "beside as many", "beside one less", "beside more"],
)
def test_a_rows_bits_depend_on_its_sequence_alone(
    engine: Engine, counts: Sequence[int], other: Callable[[int], int] | None
) -> None:
    assert torch.equal(logits_of(engine, counts, other), logits_of(engine, [LENGTH]))


def test_they_are_the_same_where_only_the_last_row_is_wanted(engine: Engine) -> None:
    last = logits_of(engine, [LENGTH])[-1:]
    assert torch.equal(logits_of(engine, [LENGTH], wanted=1), last)
    assert torch.equal(logits_of(engine, [LENGTH - 1, 1], wanted=1)[-1:], last)


def test_a_fork_goes_on_by_itself(engine: Engine) -> None:
    """The one that is written to first moves to a stream of its own."""
    whole = logits_of(engine, [LENGTH])
    first = CachedSequence("first")
    engine.cache.extend(first, TEXT[:60])
    engine.step([Append(first, 60, 1, SamplingRule())])
    fork = engine.cache.fork(first, "fork")
    engine.cache.truncate(fork, 50)

    def forward(sequence: CachedSequence, tokens: list[int]) -> torch.Tensor:
        start = len(sequence)
        engine.cache.extend(sequence, tokens)
        engine.backend.copy_pages(engine.cache.take_copies())
        return tensor_of(engine.backend.forward([Segment(tokens, start, sequence.pages, len(tokens))]))

    other = forward(fork, [5] * 10)
    assert fork.pages != first.pages
    assert torch.equal(forward(first, TEXT[60:]), whole[60:])
    engine.cache.truncate(fork, 50)
    assert torch.equal(forward(fork, TEXT[50:60]), whole[50:60])
    assert not torch.equal(other, whole[50:60])
    engine.release_sequence(first)
    engine.release_sequence(fork)
    assert engine.pool.counts().held == 0


def test_nan_reaches_no_later_sequence(tmp_path: Path) -> None:
    """On the one stream that there is."""
    path = gguf_models.write(tmp_path / "model.gguf", "llama", "F32", nan_token=7)
    engine = engine_of(path, mib=1.5)
    assert engine.pool.page_count == 1
    expected = logits_of(engine, [LENGTH])
    bad = CachedSequence("bad")
    engine.cache.extend(bad, [5] * 200 + [7] + [5] * 50)
    (answer,) = engine.step([Append(bad, 251, 1, SamplingRule())])
    assert isinstance(answer.error, LogitsNotFiniteError) and not bad.pages
    assert torch.equal(logits_of(engine, [LENGTH]), expected)
    assert torch.equal(logits_of(engine, [7] * 12 + [6]), expected)


def test_a_file_that_is_loaded_slowly_tells_how_much_is_loaded(
    files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stages, "QUIET_SECONDS", 0.0)
    caplog.set_level("INFO")
    GgufModel(files("Q8_0"))
    told = [message for message in caplog.messages if message.startswith(f"{stages.LOADING}: ")]
    assert re.fullmatch(rf"{stages.LOADING}: (\d+\.\d) of \1 MB", told[-1])


def test_its_logits_are_those_of_transformers(files: Callable[[str], Path]) -> None:
    """In float32, as near as sums in another order are."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(embedded_directory("target"), dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT])).logits[0]
    assert torch.allclose(logits_of(engine_of(files("F32")), [LENGTH]), expected, atol=1e-3)


def test_memory_that_holds_no_whole_context_holds_one_shorter_sequence(files: Callable[[str], Path]) -> None:
    engine = engine_of(files("BF16"), mib=20)
    assert engine.pool.page_count == 1
    assert 500 < engine.context_length < 900
    assert engine.kv_byte_count <= 20 * 2**20
    with pytest.raises(
        UnsupportedModelError, match="kv_memory_mib of 1 holds no sequence; one of 256 tokens takes 6 MiB"
    ):
        engine_of(files("BF16"), mib=1)


def test_a_context_can_be_filled_to_its_last_token(files: Callable[[str], Path]) -> None:
    engine = engine_of(files("BF16"), mib=7)
    sequence = CachedSequence("full")
    while len(sequence) < engine.context_length:
        engine.cache.extend(sequence, [5])
        engine.step([Append(sequence, 1, 1, SamplingRule())])
    assert len(sequence) == engine.page_size == engine.context_length


def test_steps_of_few_tokens_can_be_warmed_up_too(files: Callable[[str], Path]) -> None:
    engine = Engine(LlamaCppBackend(files("BF16"), threads=2, most_tokens=8, exact=True), kv_memory_mib=200)
    engine.profile(5)
    engine.warm(2)
    assert engine.step_times and engine.pool.counts().held == 0


def test_a_run_is_what_so_many_steps_are(files: Callable[[str], Path]) -> None:
    engine = engine_of(files("BF16"), exact=False)
    assert engine.multi_step
    one, other = CachedSequence("one"), CachedSequence("other")
    for sequence in (one, other):
        engine.cache.extend(sequence, TEXT[:9])
    (run,) = [
        [answer.choices[0].token for answer in answers]
        for answers in engine.steps([Append(one, 9, 1, SamplingRule(), drafting=True)], 1)
    ]
    engine.cache.extend(one, run)
    run += [
        answer.choices[0].token
        for answer in engine.run_multi_step([Append(one, 1, 1, SamplingRule(), drafting=True)], 7)[0]
    ]
    steps: list[int] = []
    pending = 9
    for _ in range(8):
        steps.append(engine.step([Append(other, pending, 1, SamplingRule(), drafting=True)])[0].choices[0].token)
        engine.cache.extend(other, steps[-1:])
        pending = 1
    assert run == steps


def test_what_the_text_cannot_be_promised_with_is_refused_for_a_target_alone(files: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has weights of type q4_0; a target's must be f32, bf16, q8_0"):
        engine_of(files("Q4_0"))
    assert engine_of(files("Q4_0"), exact=False).model.dtype == "q4_0"


def test_a_files_own_word_for_its_type_is_not_taken(files: Callable[[str], Path], tmp_path: Path) -> None:
    data = files("Q4_0").read_bytes()
    key = b"general.file_type" + (4).to_bytes(4, "little")  # a uint32 follows
    assert data.count(key) == 1
    at = data.index(key) + len(key)
    (tmp_path / "model.gguf").write_bytes(data[:at] + (32).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(UnsupportedModelError, match="has weights of type q4_0; a target's must be f32, bf16, q8_0"):
        engine_of(tmp_path / "model.gguf")
    assert engine_of(tmp_path / "model.gguf", exact=False).model.dtype == "bf16"


@pytest.mark.parametrize(
    ("architecture", "experts", "said"),
    [
        ("gemma", 0, "is a gemma; a target must be one of llama, qwen2, qwen3, "),
        ("llama", 2, "is a mixture of experts"),
    ],
)
def test_an_untested_architecture_is_refused(tmp_path: Path, architecture: str, experts: int, said: str) -> None:
    path = gguf_models.write(tmp_path / "model.gguf", architecture, experts=experts)
    with pytest.raises(UnsupportedModelError, match=said):
        engine_of(path)
    assert engine_of(path, exact=False).model.architecture == architecture


def test_other_weights_have_another_fingerprint(files: Callable[[str], Path], tmp_path: Path) -> None:
    fingerprints = {engine_of(files(weights)).model.weights_fingerprint for weights in ("F32", "BF16", "Q8_0")}
    assert len(fingerprints) == 3
    again = convert(embedded_directory("target"), tmp_path / "again.gguf")
    assert engine_of(again).model.weights_fingerprint in fingerprints


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no GGUF file at"),
        (b"PK\3\4", "is not a GGUF file: it begins with b'PK"),
        (b"GGUF" + bytes(20), "llama.cpp cannot load"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=said):
        engine_of(path)


def test_a_truncated_file_is_refused(files: Callable[[str], Path], tmp_path: Path) -> None:
    whole = files("BF16").read_bytes()
    (tmp_path / "x.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnsupportedModelError, match=r"llama.cpp cannot load .*copy, download or convert it again"):
        engine_of(tmp_path / "x.gguf")


def test_an_architecture_that_llama_cpp_does_not_know_is_named(files: Callable[[str], Path], tmp_path: Path) -> None:
    data = files("BF16").read_bytes().replace(b"llama", b"lhama")
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(UnsupportedModelError, match="unknown model architecture: 'lhama'"):
        engine_of(tmp_path / "x.gguf")


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModelError, match=r"pip install 'slipstream-llm\[llamacpp\]'"):
        libllama.load.__wrapped__()


def test_a_library_laid_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libllama._CONTEXT_DEFAULTS, "n_batch", 1)
    with pytest.raises(UnsupportedModelError, match=r"llama_context_params.n_batch is 2048 by default, not 1\)"):
        libllama.load.__wrapped__()


def test_the_tokenizer_lies_beside_the_file_or_in_it(files: Callable[[str], Path]) -> None:
    inside = load_tokenizer_files(str(files("BF16")))
    beside = load_tokenizer_files(str(embedded_directory("target")))
    assert inside.fingerprint == beside.fingerprint
    assert inside.files["chat_template.jinja"] == beside.files["chat_template.jinja"]
