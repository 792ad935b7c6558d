"""When a draft's hints pay, and when it rests."""

from __future__ import annotations

from orchestrator.proposers.paying import REST, WINDOW, Paying


def hinted(accepted: int) -> Paying:
    paying = Paying()
    paying.hint(WINDOW)
    paying.accept(accepted)
    return paying


def test_a_draft_pays_from_a_twentieth_of_its_hints_on() -> None:
    assert not hinted(accepted=10).judge()
    assert hinted(accepted=9).judge()


def test_nothing_is_judged_before_the_window_is_full() -> None:
    paying = Paying()
    paying.hint(WINDOW - 1)
    assert not paying.judge()
    paying.hint(1)
    assert paying.judge()


def test_a_draft_that_rests_is_tried_again_and_judged_again() -> None:
    paying = hinted(accepted=0)
    assert paying.judge() and paying.is_off and not paying.judge()
    paying.commit(REST - 1)
    assert paying.is_off
    paying.commit(1)
    assert not paying.is_off
    paying.hint(WINDOW)
    paying.accept(WINDOW // 2)
    assert not paying.judge() and not paying.is_off
