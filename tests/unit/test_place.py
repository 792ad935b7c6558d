"""Session ids say which process keeps the session."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

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
