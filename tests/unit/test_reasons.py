from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.errors import SlipstreamError
from slipstream.reasons import Code, Reason

ROOT = Path(__file__).parents[2]
PACKAGES = "slipstream", "draft_service", "verifier_service", "orchestrator", "tools"
TABLE = ROOT / "slipstream" / "reasons.py"


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Each module of the product, the table itself and generated ones aside."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path != TABLE and "v1" not in path.parts:
                yield path.relative_to(ROOT), ast.parse(path.read_text())


def test_no_module_spells_a_reason() -> None:
    bare = [
        f"{path}:{node.lineno}: {node.value!r}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in set(Reason)
    ]
    assert not bare, f"use slipstream.reasons.Reason: {bare}"


def test_no_error_has_a_reason_outside_the_table() -> None:
    unknown = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and any(isinstance(target, ast.Name) and target.id == "reason" for target in node.targets)
    ]
    assert not unknown, f"add the reason to slipstream.reasons.Reason: {unknown}"


def test_every_reason_is_used() -> None:
    used = {
        node.attr
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason"
    }
    assert set(Reason.__members__) == used


@pytest.mark.parametrize("name", Reason.__members__)
def test_a_reason_says_what_it_means_and_what_to_do(name: str) -> None:
    reason = Reason[name]
    assert reason == name
    assert len(reason.meaning.split()) <= 25
    for text in (reason.meaning, reason.action):
        assert text[0].isupper()
        assert text.endswith(".")
        assert "\n" not in text


def test_an_error_has_the_code_of_its_reason() -> None:
    class LateError(SlipstreamError):
        reason = Reason.DRAFT_LATE

    class LaterError(LateError):
        reason = Reason.QUEUE_FULL

    assert LateError.code is Code.DEADLINE_EXCEEDED
    assert LaterError.code is Code.RESOURCE_EXHAUSTED
    assert SlipstreamError.code is Code.INTERNAL
