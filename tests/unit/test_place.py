"""Which process keeps a session, and which answers a request that comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.processes.claims import Claims
from orchestrator.processes.place import Place


@given(st.integers(1, 64), st.data())
def test_an_id_names_its_owner_to_every_process(count: int, data: st.DataObject) -> None:
    number, other = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    session_id = Place(number, count, Path()).new_session_id()
    assert len(session_id) == 16
    assert Place(other, count, Path()).owner(session_id) == number


@given(st.text(), st.integers(1, 64))
def test_whatever_is_asked_for_is_somebodys_to_refuse(session_id: str, count: int) -> None:
    assert 0 <= Place(0, count, Path()).owner(session_id) < count


def test_the_first_process_that_is_asked_answers_a_request_wherever_it_comes_again(tmp_path: Path) -> None:
    first, second = Claims(tmp_path, 0), Claims(tmp_path, 1)
    assert first.claim("a") == 0
    assert (second.claim("a"), second.claim("b"), first.claim("b"), first.claim("a")) == (0, 1, 1, 0)
    assert (first.claim(""), second.claim("")) == (0, 1)


def test_old_claims_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.processes.claims._KEPT_CLAIMS", 2)
    first, second = Claims(tmp_path, 0), Claims(tmp_path, 1)
    for name in "abc":
        first.claim(name)
    assert [second.claim(name) for name in "abc"] == [1, 0, 0]
