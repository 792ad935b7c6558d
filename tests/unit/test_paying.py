"""When a draft's hints pay, and when it rests."""

from __future__ import annotations

from orchestrator.proposers.paying import REST, WINDOW, Paying


def hinted(accepted: int, seconds: float = 0.0) -> Paying:
    paying = Paying()
    paying.hint(WINDOW)
    paying.accept(accepted)
    paying.work(seconds)
    return paying


def test_a_draft_on_its_own_processors_pays_from_a_twentieth_of_its_hints_on() -> None:
    assert not hinted(accepted=10, seconds=100.0).judge(0.0)
    assert hinted(accepted=9).judge(0.0)


def test_a_draft_on_shared_processors_brings_more_than_its_work_costs() -> None:
    assert not hinted(accepted=100, seconds=1.0).judge(price=100.0)
    assert hinted(accepted=100, seconds=1.0).judge(price=101.0)


def test_nothing_is_judged_before_the_window_is_full() -> None:
    paying = Paying()
    paying.hint(WINDOW - 1)
    assert not paying.judge(0.0)
    paying.hint(1)
    assert paying.judge(0.0)


def test_a_draft_that_rests_is_tried_again_and_judged_again() -> None:
    paying = hinted(accepted=0)
    assert paying.judge(0.0) and paying.is_off and not paying.judge(0.0)
    paying.commit(REST - 1)
    assert paying.is_off
    paying.commit(1)
    assert not paying.is_off
    paying.hint(WINDOW)
    paying.accept(WINDOW // 2)
    assert not paying.judge(0.0) and not paying.is_off
