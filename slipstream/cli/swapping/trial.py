"""A trial of a new draft beside the old ones, up to its verdict.

::

    introduce --> measure --> verdict --> Replacement: keep --> remove_old
        |            |           '------> NewDraft.withdraw: the new one is removed
        '------------'-- it fails, Ctrl-C --^
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from slipstream.cli.local import TOKENIZER_FLAG
from slipstream.cli.swapping.answers import drafts_in, refusal_of
from slipstream.cli.swapping.comparison import Figures, Tally, Verdict, judge
from slipstream.cli.swapping.goal import Finding, Goal, SwapError
from slipstream.cli.swapping.new_draft import POLL_SECONDS, FailingError, NewDraft, because
from slipstream.v1 import operator_pb2


class Trial:
    """The trial of one draft."""

    def __init__(self, draft: NewDraft, goal: Goal, replaces: Iterable[str] = ()) -> None:
        """``replaces``: addresses of the old drafts that it would replace; none means all."""
        self.draft, self.goal = draft, goal
        self._replaces = list(dict.fromkeys(replaces))
        self._tally = Tally()
        self.old_addresses: list[str] = []
        """The drafts that the new one would replace."""
        self.staying: list[str] = []
        """The other drafts."""

    def find(self) -> Finding:
        """Run the trial. SwapError or PeerError if there can be none. The new draft is on trial
        afterwards."""
        drafts, address = drafts_in(self.draft.ask(lambda operators: operators.list())), self.draft.address
        if address in drafts:
            raise SwapError(f"{address} is a draft of this orchestrator already: there is nothing to replace")
        if unknown := [each for each in self._replaces if each not in drafts]:
            raise SwapError(f"{unknown[0]} is no draft of this orchestrator; its drafts: {', '.join(drafts)}")
        self.old_addresses = self._replaces or [*drafts]
        self.staying = [each for each in drafts if each not in self.old_addresses]
        try:
            new = self._introduce()
            if twin := self._twin_of(new):
                why = f"it has the weights of the draft at {twin}, so neither guesses better"
                return Finding(Verdict.UNDECIDED, why, Figures(), Figures())
            return self._finding(*self._measure())
        except FailingError as error:
            return self._finding(Verdict.FAILING, str(error))

    def _introduce(self) -> operator_pb2.Draft:
        """Add the draft with no sessions, and return it once it serves."""
        processes = self.draft.add()
        if fault := refusal_of(processes):
            raise fault
        deadline = time.monotonic() + self.goal.start_seconds
        while True:
            self.draft.check_process()
            new = self.draft.found_in(processes)
            if new.state == operator_pb2.DRAFT_STATE_SERVING:
                return new
            if new.state == operator_pb2.DRAFT_STATE_MISMATCHED:
                raise SwapError(
                    f"the draft at {self.draft.address}, {new.model}, has another tokenizer than the target. A draft "
                    f"service with {TOKENIZER_FLAG} TARGET translates its hints: slipstream swap --model MODEL -- "
                    f"{TOKENIZER_FLAG} TARGET"
                )
            if time.monotonic() > deadline:
                raise FailingError(
                    f"the orchestrator has not reached it in {self.goal.start_seconds:g} s{because(new)}"
                )
            self.draft.report(f"waiting until the new draft serves{because(new)}")
            time.sleep(POLL_SECONDS)
            processes = self.draft.renew(0.0)

    def _measure(self) -> tuple[Verdict, str]:
        """Give the draft its share until there is enough to judge it."""
        deadline = time.monotonic() + self.goal.longest
        self.draft.begin_watch()
        while True:
            processes = self.draft.renew(self.goal.share)
            self._tally.take(processes)
            self.draft.is_served(processes)
            new, old = self._figures()
            if self._is_enough(new) or time.monotonic() > deadline:
                return judge(new, old)
            self.draft.report(
                f"{new.turn_count} of {self.goal.turn_count} turns with the new draft, {old.turn_count} with the old"
            )
            time.sleep(POLL_SECONDS)

    def _is_enough(self, new: Figures) -> bool:
        most = self.goal.token_count
        return new.turn_count >= self.goal.turn_count or (most is not None and new.token_count >= most)

    def _twin_of(self, new: operator_pb2.Draft) -> str:
        drafts = drafts_in(self.draft.ask(lambda operators: operators.list()))
        same = [address for address in self.old_addresses if address in drafts]
        return next((a for a in same if drafts[a].weights_fingerprint == new.weights_fingerprint), "")

    def _figures(self) -> tuple[Figures, Figures]:
        return self._tally.of([self.draft.address]), self._tally.of(self.old_addresses)

    def _finding(self, verdict: Verdict, why: str) -> Finding:
        return Finding(verdict, why, *self._figures())
