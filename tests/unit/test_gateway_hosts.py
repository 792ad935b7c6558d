"""A gateway on loopback answers requests for names of loopback, and for those that it is given."""

from __future__ import annotations

import pytest

from gateway.errors import ApiError
from gateway.hosts import Hosts

REBOUND = "rebound.example:8000"


@pytest.mark.parametrize(
    "host", ["localhost:8000", "LOCALHOST", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "[::1]", "chat.example"]
)
def test_names_of_loopback_and_given_names_are_answered(host: str) -> None:
    Hosts("127.0.0.1:8000", ["Chat.example"]).check(host)


@pytest.mark.parametrize(
    "host", [REBOUND, "", "127.0.0.1.rebound.example", "localhost.rebound.example", "10.0.0.1", "::"]
)
def test_other_names_are_refused_by_what_would_be_right(host: str) -> None:
    with pytest.raises(ApiError, match="--allowed-hosts") as caught:
        Hosts("127.0.0.1:8000", []).check(host)
    assert (caught.value.status, caught.value.code) == (421, "host_not_allowed")


def test_a_gateway_for_others_and_one_that_allows_any_answer_every_name() -> None:
    Hosts("0.0.0.0:8000", []).check(REBOUND)
    Hosts("127.0.0.1:8000", ["any"]).check(REBOUND)
    with pytest.raises(ApiError):
        Hosts("0.0.0.0:8000", ["chat.example"]).check(REBOUND)
