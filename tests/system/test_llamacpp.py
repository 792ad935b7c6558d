"""A pair of GGUF files over three processes: the text is transformers' own, with any draft, any
number of sessions and either backend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.llamacpp_models import convert
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from tests.system.short_proofs import assert_no_bit_differs, prove

QUESTIONS = [
    f"What does {name} do{end}"
    for name in ("len", "zip", "map", "sorted", "iter", "open")
    for end in ("?", " in a loop?")
]
TOKEN_COUNT = 48
STREAMS = 3
ENGINE = ["--engine", "llamacpp"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target in float32, and a draft in four bits."""
    directory = tmp_path_factory.mktemp("gguf")
    target = convert(embedded_directory("target"), directory / "target" / "model.gguf", "F32")
    return target, convert(embedded_directory("draft"), directory / "draft" / "model.gguf", "Q4_0")


@pytest.fixture(scope="module")
def served(pair: tuple[Path, Path]) -> Iterator[LocalServices]:
    target, draft = map(str, pair)
    memory = str(STREAMS * 50)
    flags = [*ENGINE, "--kv-memory-mib", memory]
    with LocalServices(PairSettings(target=target, draft=draft, target_flags=flags, draft_flags=ENGINE)) as local:
        yield local


def texts(address: str, settings: Settings, at_once: int = 1) -> list[str]:
    with Client(address) as client, ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda question: client.generate(prompt_of(question), settings).wait().text, QUESTIONS))


def prompt_of(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.essential
def test_its_greedy_text_is_that_of_transformers(served: LocalServices) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = embedded_directory("target")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = []
    for question in QUESTIONS:
        ids = tokenizer(prompt_of(question), return_tensors="pt", add_special_tokens=False)
        output = model.generate(**ids, max_new_tokens=TOKEN_COUNT, do_sample=False)
        expected.append(tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    assert texts(served.orchestrator_address, Settings(max_token_count=TOKEN_COUNT)) == expected


def test_compiled_code_says_the_same_of_the_same_files(pair: tuple[Path, Path], served: LocalServices) -> None:
    """In float32 both are near enough to what is exact; the draft in four bits is llama.cpp's
    either way."""
    settings = Settings(max_token_count=TOKEN_COUNT)
    with LocalServices(PairSettings(target=str(pair[0]), draft=str(pair[1]))) as local:
        assert texts(local.orchestrator_address, settings) == texts(served.orchestrator_address, settings)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_neither_the_draft_nor_others_change_it(served: LocalServices, temperature: float) -> None:
    """So too with more sessions than there are streams, where an idle session gives up its own."""
    settings: dict[str, Any] = {"max_token_count": TOKEN_COUNT, "temperature": temperature, "seed": 5}
    address = served.orchestrator_address
    plain = texts(address, Settings(**settings, draft_length=0))
    assert texts(address, Settings(**settings, draft_length=8)) == plain
    assert texts(address, Settings(**settings, draft_length=4), at_once=2 * STREAMS) == plain
    assert texts(address, Settings(**settings), at_once=2 * STREAMS) == plain


def test_what_it_serves_is_told(served: LocalServices) -> None:
    with Client(served.orchestrator_address) as client:
        info = client.server_info()
    assert (info.target.dtype, info.draft.dtype) == ("f32", "q4_0")


@pytest.mark.parametrize("gguf_role", ["target", "draft"])
def test_a_pair_may_be_mixed(pair: tuple[Path, Path], gguf_role: str) -> None:
    names = {"target": "embedded", "draft": "embedded", gguf_role: str(pair[gguf_role == "draft"])}
    with LocalServices(PairSettings(**names)) as local, Client(local.orchestrator_address) as client:
        drafted, plain = (
            client.generate(prompt_of(QUESTIONS[0]), Settings(max_token_count=TOKEN_COUNT, draft_length=length)).wait()
            for length in (4, 0)
        )
    assert drafted.text == plain.text
    assert drafted.accepted_token_count > 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "cuda"], "GGUF models are served on the cpu, but --device is 'cuda'"),
        (["--kv-memory-mib", "1"], "kv_memory_mib of 1 holds no sequence; one of 256 tokens takes 6 MiB"),
    ],
)
def test_what_cannot_be_ends_the_service_in_a_line(pair: tuple[Path, Path], flags: list[str], said: str) -> None:
    command = [
        sys.executable,
        "-m",
        "verifier_service",
        "--address",
        "127.0.0.1:0",
        "--model",
        str(pair[0]),
        *ENGINE,
        *flags,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"verifier: {said}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", ["llamacpp", "gguf"])
def test_the_proof_holds_on_it(tmp_path: Path, backend: str) -> None:
    status, output = prove(tmp_path, 5, "--backend", backend)
    assert_no_bit_differs(tmp_path, 5, status, output, "--backend", backend)
    assert (tmp_path / f"test-seed5-prompts40-tokens96-{backend}" / "gguf" / "embedded-pair" / "draft.gguf").exists()
