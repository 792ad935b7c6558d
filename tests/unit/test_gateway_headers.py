"""Headers of the gateway's responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import Headers, MutableHeaders

from gateway.exchange import Exchange
from gateway.headers import add_headers, duration, request_id_of
from gateway.metrics import Metrics


def limits(**fields: Any) -> Any:
    unset = {"max_turn_count": 0, "turn_count": 0, "tokens_per_minute": 0.0, "left_token_count": 0.0}
    return SimpleNamespace(**{**unset, **fields})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (limits(), {}),
        (limits(max_turn_count=4, turn_count=1), {"limit-requests": "4", "remaining-requests": "3"}),
        (limits(max_turn_count=1, turn_count=2), {"limit-requests": "1", "remaining-requests": "0"}),
        (
            limits(tokens_per_minute=600.0, left_token_count=450.0),
            {"limit-tokens": "600", "remaining-tokens": "450", "reset-tokens": "15s"},
        ),
    ],
    ids=str,
)
def test_limits_are_told_in_openais_names(given: Any, expected: dict[str, str]) -> None:
    headers = MutableHeaders()
    add_headers(headers, Exchange("r", Metrics(), limits=given))
    assert dict(headers) == {"x-request-id": "r"} | {f"x-ratelimit-{name}": value for name, value in expected.items()}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0ms"), (0.017, "17ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (362.25, "6m2.25s")],
)
def test_times_are_written_as_openai_does(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "é"])
def test_a_request_without_a_proper_id_gets_a_random_one(given: str) -> None:
    headers = Headers({"x-request-id": given})
    assert request_id_of(headers).startswith("req_")
    assert request_id_of(headers) != request_id_of(headers)


def test_a_request_keeps_the_id_that_it_has() -> None:
    assert request_id_of(Headers({"x-request-id": "mine-1"})) == "mine-1"
