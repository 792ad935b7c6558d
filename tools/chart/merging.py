"""One tree of several: the base, and what each component makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class _Absent(Enum):
    """Type of `ABSENT`."""

    ABSENT = "absent"


ABSENT = _Absent.ABSENT
"""The value of a key or an object that is not there."""

Node = Any
"""A tree of dicts, lists and scalars, with `When` and `Either` in it."""


@dataclass(frozen=True, slots=True)
class When:
    """A node that is there if one of the components is on, or, negated, if none is."""

    components: tuple[str, ...]
    node: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Either:
    """A node for each component that changes it, and one without them."""

    cases: tuple[tuple[str, Node], ...]
    otherwise: Node


class MergingError(Exception):
    """Two components change the same place in ways that no template expresses."""


def merge(base: Any, variants: Mapping[str, Any], place: str = "") -> Node:
    """Return a tree that is the base, and each variant where its component alone is on.
    MergingError if components contradict each other."""
    differing = {name: value for name, value in variants.items() if value != base}
    if not differing:
        return base
    values = list(differing.values())
    if base is ABSENT:
        if any(value != values[0] for value in values):
            raise MergingError(f"{', '.join(differing)} add different things at {place}")
        return When(tuple(differing), values[0])
    if ABSENT in values:
        if any(value is not ABSENT for value in values):
            raise MergingError(f"{', '.join(differing)} change and remove {place}")
        return When(tuple(differing), base, negated=True)
    if _all(dict, base, *values):
        return _merge_keys(base, differing, place)
    if _all(list, base, *values):
        return _merge_items(base, differing, place)
    return Either(tuple(differing.items()), base)


def _merge_keys(base: dict[str, Any], variants: Mapping[str, dict[str, Any]], place: str) -> Node:
    keys = dict.fromkeys(key for tree in (base, *variants.values()) for key in tree)
    return {
        key: merge(
            base.get(key, ABSENT), {name: tree.get(key, ABSENT) for name, tree in variants.items()}, f"{place}.{key}"
        )
        for key in keys
    }


def _merge_items(base: list[Any], variants: Mapping[str, list[Any]], place: str) -> Node:
    """Merge lists of named objects by name, others by what is appended."""
    named = [_by_name(items) for items in (base, *variants.values())]
    if all(each is not None for each in named):
        trees = [each for each in named if each is not None]
        return list(_merge_keys(trees[0], dict(zip(variants, trees[1:], strict=True)), place).values())
    if all(items[: len(base)] == base for items in variants.values()):
        added = [When((name,), item) for name, items in variants.items() for item in items[len(base) :]]
        return [*base, *added]
    return Either(tuple(variants.items()), base)


def _by_name(items: Iterable[Any]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, dict) or "name" not in item or item["name"] in found:
            return None
        found[item["name"]] = item
    return found


def _all(kind: type, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)
