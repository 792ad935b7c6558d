"""The results as a page of tables."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import Any

_HEAD = """<!-- Written by suites/vllm. -->

# The verifier over a real vLLM server

`make test-vllm` runs vLLM 0.32's CPU build behind `verifier_service --engine vllm`, with the
embedded pair.
"""


def table(result: dict[str, Any]) -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_checks(result.get("checks", {})), *_speed(result.get("speed", {})), ""])


def _checks(checks: dict[str, Any]) -> Iterator[str]:
    if "server" in checks:
        yield f"{fill('At its start the verifier says: ' + checks['server']['says'], 100)}\n"
    yield "| check | holds | seen |\n| --- | --- | --- |"
    for name, found in checks.items():
        if name != "server":
            seen = ", ".join(f"{_shown(value)} {key}" for key, value in found.items() if key != "holds")
            yield f"| {name} | {'yes' if found['holds'] else '**no**'} | {seen} |"
    yield ""


def _shown(value: Any) -> str:
    """Return a number, or those of several ways."""
    if not isinstance(value, dict):
        return str(value)
    return f"{' + '.join(map(str, value.values()))} (draft lengths {', '.join(value)})"


def _speed(speed: dict[str, Any]) -> Iterator[str]:
    if not speed:
        return
    yield f"## Speed\n\n{fill(speed['note'], 100)}\n"
    yield "| target | way | greedy tokens/s, median | beside vLLM alone |\n| --- | --- | ---: | ---: |"
    for target, ways in speed["targets"].items():
        for way, found in ways.items():
            yield f"| {target} | {way} | {found['rate']:.1f} | {found['ratio']:.2f} |"
