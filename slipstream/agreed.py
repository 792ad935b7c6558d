"""Numbers and names that two processes must agree on, and that the protos cannot state.

Both sides of the wire between the services import them from here. Errors' reasons are in
`slipstream.reasons`. Change one only together with ``_CHANGES``, unless an older process of
either side works with the new value.
"""

from __future__ import annotations

from typing import Final

from slipstream.sampling_fields import SAMPLING_FIELDS

_FIRST_FIELDS = 9
_CHANGES = 3

WIRE_VERSION: Final = 1 + _CHANGES + len(SAMPLING_FIELDS) - _FIRST_FIELDS
"""Version of slipstream.wire.v1. Services of equal wire versions work together; others refuse each
other. It rises with each change that a service of the version before would not understand: with
``_CHANGES``, and with each sampling field, since a service that does not know a field would choose
other tokens."""

MAX_DRAFT_LENGTH: Final = 1024
"""Most proposal tokens that any service lets an item carry or ask for."""

MAX_HINT_COUNT: Final = 64
"""Most hints of one result of a draft."""

LONGEST_HOLD_SECONDS: Final = 1.0
"""Longest time for which a step may be told to wait for a hint."""

ROUND_TAIL: Final = 8
"""Most committed tokens that a round has to prefill. An item with more has a prompt: the services
report its time separately, and the orchestrator learns no round's time from it."""

RULES_PER_HANDLE: Final = 4
"""Rules that a service keeps for a handle. A turn has one, but the draft is asked at a few
temperatures of it. The orchestrator states a rule again once that many others came after it."""

MAX_ANSWER_BYTES: Final = 4 * 2**20
"""Most bytes of a message that a draft or a verifier sends. The most log-probabilities that a turn
may ask for, 200,000, take 2.4 MB. A parsed message takes up to fifty times its bytes."""

PEER_KEY: Final = "slipstream-peer-key"
"""Metadata key of a stream of items. Its value is the caller's: only the caller that has opened
handles under a value may use and close them."""
