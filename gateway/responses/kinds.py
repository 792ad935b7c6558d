"""Objects of several kinds in one place, told apart by their ``type``."""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from gateway.errors import encodable


def known_types(*names: str, default: str | None = None) -> BeforeValidator:
    """Return a check that refuses an object of another type, and names its type. One without a type
    is of the ``default``."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and value.get("type", default) not in names:
            told = encodable(str(value.get("type")))[:64]
            context = {"field": "type", "told": told, "names": ", ".join(names)}
            raise PydanticCustomError("refused_field", "type must be one of {names}, but is {told}", context)
        return value

    return BeforeValidator(check)
