"""What real services serve over real sockets follows the target's exact distribution, under either
kind of acceptance.

Twelve tokens are allowed, so that the exact joint distribution of the next two can be had from
transformers' own forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.oracle import processed
from tests.statistical.chi_square import FALSE_ALARM, p_value

PROMPT = [5, 900, 31, 7]
ALLOWED = list(range(40, 52))
RULE = SamplingRule(temperature=0.5, allowed_token_ids=tuple(ALLOWED))
REQUESTS = 1_500


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def client(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    draft = tiny_models.perturbed(tiny_models.build("llama"), 0.3)
    directory = tiny_models.save(draft, tmp_path_factory.mktemp("draft"))
    pair = PairSettings(target=str(target), draft=str(directory), dtype="float32")
    with LocalServices(pair) as local, Client(local.orchestrator_address) as connected:
        yield connected


@pytest.fixture(scope="module")
def exact(target: Path) -> np.ndarray:
    """Joint probabilities of the two tokens after the prompt, float64 ``[12, 12]``."""
    model = AutoModelForCausalLM.from_pretrained(target)

    @torch.inference_mode()
    def after(context: list[int]) -> np.ndarray:
        filtered = processed(RULE, model(torch.tensor([context])).logits[0, -1], context)
        return np.asarray(filtered.double().softmax(-1)[ALLOWED].numpy())

    first = after(PROMPT)
    return np.stack([first[i] * after([*PROMPT, token]) for i, token in enumerate(ALLOWED)])


@pytest.mark.parametrize("ratio", [False, True])
def test_two_served_tokens_follow_the_exact_joint_distribution(client: Client, exact: np.ndarray, ratio: bool) -> None:
    def answer(seed: int) -> tuple[tuple[int, ...], int, int]:
        settings = Settings(
            temperature=RULE.temperature,
            allowed_token_ids=ALLOWED,
            seed=seed,
            ratio=ratio,
            max_token_count=3,  # the first token comes before any hint, and the last needs none
            ignore_end_tokens=True,
            draft_length=1,
        )
        result = client.generate(PROMPT, settings).wait()
        return tuple(result.token_ids[:2]), result.accepted_token_count, result.draft_token_count

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(answer, range(REQUESTS)))
    accepted = sum(answer[1] for answer in answers)
    drafted = sum(answer[2] for answer in answers)
    assert 0.2 < accepted / drafted < 0.95, "both acceptances and rejections must have been seen"
    counts = Counter(answer[0] for answer in answers)
    observed = [counts[ALLOWED[i], ALLOWED[j]] for i, j in np.ndindex(exact.shape)]
    assert p_value(observed, exact.reshape(-1)) > FALSE_ALARM
    # A statistic that could not see a difference would prove nothing: the flipped distribution must
    # fail it.
    assert p_value(observed, exact[::-1].reshape(-1)) < FALSE_ALARM
