"""The error of a plan that cannot be made."""

from __future__ import annotations


class PlanError(ValueError):
    """A flag's value cannot be planned with. The message says what would be right."""
