"""A verifier over a server that answers as vLLM does, with a draft and an orchestrator as real
processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Settings
from slipstream.sampling.rule import SamplingRule
from tests.fake_vllm import MODEL, FakeVllm, text_after

PROMPT = [*range(100, 140)]
END = 2
KEY = "key-abc123"
COUNT = 120


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeVllm]:
    fake = FakeVllm()
    fake.prefix = "/llm/one"
    with fake.serving():
        yield fake


@pytest.fixture(scope="module")
def services(fake: FakeVllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text(KEY)
    flags = ["--engine", "vllm", "--engine-address", fake.url, "--engine-patience-seconds", "0.5"]
    with LocalServices(PairSettings(target_flags=[*flags, "--engine-token-file", str(key)])) as local:
        yield local


def expected(temperature: float, seed: int = 1) -> list[int]:
    rule = SamplingRule(temperature=temperature, seed=seed, end_token_ids=(END,))
    return text_after(PROMPT, COUNT, rule)


@pytest.mark.essential
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_off_fixed_on_and_predicted_texts_are_those_of_the_server(services: LocalServices, temperature: float) -> None:
    right = expected(temperature)
    wrong = [*right[:10], 7, *right[11:]]
    with Client(services.orchestrator_address) as client:
        for draft_length, prediction in ((0, None), (4, None), ("adaptive", None), ("adaptive", right), (4, wrong)):
            settings = Settings(temperature=temperature, seed=1, max_token_count=COUNT, draft_length=draft_length)
            reply = client.generate(PROMPT, settings, prediction=prediction)
            assert reply.wait().token_ids == right, (draft_length, prediction)


@pytest.mark.essential
def test_what_the_server_does_not_promise_is_reported(services: LocalServices) -> None:
    with Client(services.orchestrator_address) as client:
        target = client.server_info().target
        assert "vLLM 0.32.0 does not promise that a row has equal bits in every batch" in target.caveats[0]
        assert (target.device, target.architecture) == ("vLLM 0.32.0", "LlamaForCausalLM")


def test_the_servers_key_is_in_every_request_and_in_no_log(services: LocalServices, fake: FakeVllm) -> None:
    assert fake.authorizations == {f"Bearer {KEY}"}
    assert KEY not in services.services["verifier"].log.read_text()


def test_a_server_that_is_killed_and_started_again_goes_on_with_the_same_text(
    services: LocalServices, fake: FakeVllm
) -> None:
    """It stays away for longer than the verifier waits: then the orchestrator does."""
    with Client(services.orchestrator_address) as client:
        fake.rows_until_lost = 30
        reply = client.generate(PROMPT, Settings(temperature=0, max_token_count=COUNT, draft_length=0))
        again = threading.Timer(2.0, fake.begin)
        again.start()
        assert reply.wait().token_ids == expected(0.0)
        again.join()


def test_what_a_stock_engine_cannot_do_reaches_the_caller_by_name(services: LocalServices) -> None:
    with (
        Client(services.orchestrator_address) as client,
        pytest.raises(PeerError, match="repetition_penalty must be 1"),
    ):
        client.generate(PROMPT, Settings(repetition_penalty=1.2, max_token_count=5)).wait()


def test_a_quantised_checkpoint_is_the_servers_to_load(fake: FakeVllm, tmp_path: Path) -> None:
    """Its small files are all that is here, one that our own engine refuses among them."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(Path(MODEL, name), tmp_path / name)
    config = json.loads(Path(MODEL, "config.json").read_text())
    quantised = config | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(quantised))
    (tmp_path / "hf_quant_config.json").write_text("{}")
    flags = ["--engine", "vllm", "--engine-address", fake.url]
    pair = PairSettings(target=str(tmp_path), draft="", target_flags=flags)
    with LocalServices(pair) as services, Client(services.orchestrator_address) as client:
        settings = Settings(temperature=0, max_token_count=COUNT)
        assert client.generate(PROMPT, settings).wait().token_ids == expected(0.0)


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        ("verifier_service", [], "--engine-address must be set with --engine vllm, such as http://127.0.0.1:8000"),
        (
            "verifier_service",
            ["--engine-address", "localhost"],
            "--engine-address must be an http:// or https:// address",
        ),
        (
            "verifier_service",
            ["--engine", "sglang", "--engine-model", "lora", "--engine-address", "http://127.0.0.1:9"],
            "--engine-model must be left out with --engine sglang",
        ),
        (
            "verifier_service",
            ["--engine-address", "http://127.0.0.1:9", "--engine-start-seconds", "0"],
            "vllm at 127.0.0.1:9 cannot be reached: connection refused",
        ),
        ("draft_service", [], "--engine vllm serves a target, and this is the draft service"),
    ],
)
def test_a_wrong_start_is_one_line(module: str, flags: list[str], message: str) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        module,
        "--model",
        "embedded",
        "--address",
        "127.0.0.1:0",
        "--engine",
        "vllm",
    ]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert message in ended.stderr.splitlines()[-1]
