"""A process's place among ranks, by torchrun's variables or without them."""

from __future__ import annotations

import pytest

from slipstream.hosting.ranks.place import Place, PlaceError, place_of

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
STORE = {"MASTER_ADDR": "verifier-0.verifier", "MASTER_PORT": "29500"}


def test_one_rank_needs_no_group() -> None:
    assert place_of(1, TORCHRUN | STORE) == Place()


def test_rank_0_starts_the_others_where_no_launcher_has() -> None:
    assert place_of(4, {"MASTER_PORT": "1"}) == Place(0, 4, 0, 4, starts_others=True)


def test_a_launcher_says_the_place() -> None:
    assert place_of(8, TORCHRUN | STORE) == Place(5, 8, 1, 4)
    assert place_of(2, {"RANK": "1", "WORLD_SIZE": "2", **STORE}) == Place(1, 2, 1, 2)


def test_a_rank_that_rank_0_starts_knows_its_place() -> None:
    started = Place(2, 4, 2, 4)
    variables = started.variables(4321)
    assert place_of(4, variables) == started
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("127.0.0.1", "4321")


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4, but --tensor-parallel-size is 8"),
        ({"RANK": "8"}, "RANK must be from 0 to 7, but is 8"),
        ({"RANK": "-1"}, "RANK must be a whole number beside --tensor-parallel-size, but is '-1'"),
        ({"RANK": ""}, "RANK must be a whole number"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK must be from 0 to 3, but is 4"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is needed beside RANK"),
    ],
)
def test_variables_that_do_not_fit_are_named(variables: dict[str, str], fault: str) -> None:
    with pytest.raises(PlaceError, match=fault):
        place_of(8, TORCHRUN | STORE | variables)
