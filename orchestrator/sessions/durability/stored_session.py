"""The part of a session's record that the store holds, or is about to hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.store.rows import EndRow, SessionRow


@dataclass(eq=False, slots=True)
class StoredSession:
    """A session as it is written. Times are seconds since the epoch."""

    row: SessionRow | None
    """The row in the store; None for a generation without a request_id, which is not written."""
    settings: GenerationSettings
    created: float
    last_active: float
    listed: bool = True
    """False for a generation's session, which no list shows."""
    principal: str = ""
    """The principal that owns it."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Texts by key that its creator keeps with it."""
    is_deleted: bool = False
    """True if the row is deleted, or about to be."""
    notes_progress: bool = False
    """True if the running turn's tokens are written now and then."""
    noted_count: int = 0
    """Number of the running turn's tokens that are written."""
    unwritten: dict[int, EndRow] = field(default_factory=dict)
    """Turns that have ended, and could not be written yet."""

    @property
    def request_id(self) -> str:
        """The request_id that created the session; empty if there was none."""
        return "" if self.row is None else self.row.request_id

    def is_owned_as(self, row: SessionRow) -> bool:
        """Return whether the store's row names the ownership that this record was made under."""
        return self.row is not None and (row.owner, row.epoch) == (self.row.owner, self.row.epoch)

    def row_for(self, target: str) -> SessionRow:
        """Return the row with the target that the next turn runs on."""
        assert self.row is not None
        return replace(self.row, target=target)
