"""The error of a distillation that cannot begin, go on or be written."""

from __future__ import annotations

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason


class DistilError(SlipstreamError):
    """A setting, the data, or the output folder does not allow it. The message says what would be
    right."""

    reason = Reason.BAD_FILE
