import torch

from slipstream.sampling.logprobs import logprobs_of


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


def test_nothing_asked_is_nothing_computed() -> None:
    assert logprobs_of(torch.zeros(0, 3), [], []) == []
