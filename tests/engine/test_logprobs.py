import pytest
import torch

from tests.tensors import logprobs_of
from tests.vector_lanes import SAME_LANES


def test_a_rows_likeliest_tokens_do_not_depend_on_what_others_ask_for() -> None:
    """bfloat16 logits tie often, and which of equals a top-k takes depends on k."""
    logits = torch.randn(200, 4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    alone = logprobs_of(logits, [0] * 200, [5] * 200)
    beside = logprobs_of(logits, [0] * 200, [5, 20] * 100)
    assert all(a.top == b.top[:5] for a, b in zip(alone, beside, strict=True))
    assert any(len({value for _, value in row.top}) < 5 for row in alone), "there must be ties"
    assert all(list(row.top) == sorted(row.top, key=lambda entry: (-entry[1], entry[0])) for row in alone)


def test_they_are_the_log_softmax_in_float32() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]])
    first, second = logprobs_of(logits, [0, 2], [2, 0])
    exact = logits.log_softmax(-1)
    assert (first.logprob, second.logprob) == (float(exact[0, 0]), float(exact[1, 2]))
    assert first.top == ((2, float(exact[0, 2])), (1, float(exact[0, 1])))
    assert second.top == ()


@SAME_LANES
@pytest.mark.parametrize("top_count", [0, 3])
def test_logits_of_fewer_bits_are_widened_first(top_count: int) -> None:
    logits = (torch.randn(6, 50, generator=torch.Generator().manual_seed(2)) * 3).bfloat16()
    exact = logits.float().log_softmax(-1)
    for index, row in enumerate(logprobs_of(logits, list(range(6)), [top_count] * 6)):
        assert (row.token, row.logprob) == (index, float(exact[index, index]))
        assert all(type(value) is float for value in (row.logprob, *(value for _, value in row.top)))
        assert all(type(token) is int for token in (row.token, *(token for token, _ in row.top)))
        assert [value for _, value in row.top] == exact[index].topk(top_count).values.tolist()


def test_they_are_near_those_of_numbers_with_more_bits() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(2)) * 3
    exact = logits.double().log_softmax(-1)
    for index, row in enumerate(logprobs_of(logits, list(range(6)), [3] * 6)):
        assert row.logprob == pytest.approx(float(exact[index, index]), abs=2e-6)
        assert [value for _, value in row.top] == pytest.approx(exact[index].topk(3).values.tolist(), abs=2e-6)


def test_a_row_has_no_more_likeliest_tokens_than_the_vocabulary_has() -> None:
    (row,) = logprobs_of(torch.tensor([[0.0, 2.0, 2.0]]), [0], [20])
    assert [token for token, _ in row.top] == [1, 2, 0]


def test_nothing_asked_is_nothing_computed() -> None:
    assert logprobs_of(torch.zeros(0, 3), [], []) == []
