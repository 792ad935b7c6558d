"""Sentences that say what to do about drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slipstream.drift.change import State
from slipstream.drift.findings import Cause, Fall, Finding, worse

_DISTIL = "distil the draft again on the target's answers (slipstream distill), and put it in place (slipstream swap)"


def shown_task(task: str) -> str:
    """Return a task as people read it."""
    return task or "(none)"


def shown_fingerprint(fingerprint: str) -> str:
    """Return the first digits of a fingerprint; the name of a source stays whole."""
    return fingerprint[:8] if len(fingerprint) > 16 else fingerprint


def advice(findings: Sequence[Finding]) -> list[str]:
    """Return a sentence or two for each cause of drift."""
    found = worse(findings)
    told = []
    for fall in _first_of_each(found, Cause.TARGET):
        told.append(
            f"The target's weights changed at that time, from {shown_fingerprint(fall.pair_before.target)} to "
            f"{shown_fingerprint(fall.pair.target)}, and the draft was made for the ones before: {_DISTIL}."
        )
    for fall in _first_of_each(found, Cause.DRAFT):
        told.append(
            f"The draft changed at that time, from {shown_fingerprint(fall.pair_before.draft)} to "
            f"{shown_fingerprint(fall.pair.draft)}: go back to the one before (slipstream swap), or {_DISTIL}."
        )
    of_requests = [finding for finding in found if any(fall.cause is Cause.REQUESTS for fall in finding.falls)]
    if of_requests:
        told.append(_about_requests(of_requests, findings))
    return told


def _about_requests(fallen: Sequence[Finding], findings: Sequence[Finding]) -> str:
    judged = {finding.task for finding in findings if finding.comparison.state is not State.FEW}
    tasks = sorted({finding.task for finding in fallen})
    if len(judged) == 1:
        return (
            "Target and draft had the same weights before and after the fall. Only one task is counted, so a broken draft "
            "and other requests look alike. See whether the draft is the right one and whole (slipstream info, its log). If "
            f"it is, {_DISTIL}. Requests that name their task show more."
        )
    if set(tasks) == judged:
        return (
            "All tasks fell, and target and draft had the same weights before and after that: the draft is probably broken. "
            "See whether it is whole and runs as it did (slipstream info, its log, its dtype and device), and start it again."
        )
    names = ", ".join(map(shown_task, tasks))
    return (
        "Other tasks are as they were, and so were the weights of target and draft at that time: the requests of "
        f"{names} have changed. Collect the target's answers to them (--collect at the verifier), and {_DISTIL}."
    )


def _first_of_each(found: Iterable[Finding], cause: Cause) -> list[Fall]:
    """Return one fall for each change of the pair with a cause."""
    kept: dict[tuple[str, str], Fall] = {}
    for fall in (fall for finding in found for fall in finding.falls if fall.cause is cause):
        before, now = fall.pair_before, fall.pair
        change = (before.target, now.target) if cause is Cause.TARGET else (before.draft, now.draft)
        kept.setdefault(change, fall)
    return list(kept.values())
