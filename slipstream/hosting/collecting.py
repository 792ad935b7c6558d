"""The seam between a service and what collects its target's choices."""

from __future__ import annotations

from typing import Protocol

from slipstream.distilling.totals import CollectTotals
from slipstream.engine.row_observer import RowObserver
from slipstream.wire.v1 import model_pb2


class Collecting(Protocol):
    """A place for collected positions, which is ready before the model is loaded."""

    totals: CollectTotals
    share: float
    """Share of the sequences that are collected."""

    def begin(self, info: model_pb2.ModelInfo) -> RowObserver | None:
        """Return the observer of the rows of a model that has been loaded; None if its rows are not
        to be observed."""

    def close(self) -> None:
        """Write what is left. No row comes any more. This blocks."""


class NotCollecting:
    """The place of a service that collects nothing."""

    def __init__(self, _: object = None) -> None:
        self.totals = CollectTotals()
        self.share = 0.0

    def begin(self, _: model_pb2.ModelInfo) -> None:
        """Observe no rows."""

    def close(self) -> None:
        """Do nothing."""
