"""The format of a response's text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.errors import ApiError
from gateway.fields import Fields, Refusal, Text
from slipstream.client import Structure


class TextFormat(Fields):
    """The format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[Text, Field(max_length=64)] | None = None
    description: Annotated[Text, Field(max_length=4096)] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    def structure(self) -> Structure | None:
        """Return the structure that the text must have. ApiError."""
        is_schema = self.type == "json_schema"
        for name, value in (("name", self.name), ("schema", self.schema_)):
            if is_schema != (value is not None):
                message = f"text.format.{name} must be set if, and only if, type is json_schema"
                raise ApiError(400, message, param=f"text.format.{name}")
        if is_schema:
            return Structure(json_schema=json.dumps(self.schema_))
        return Structure(json_schema='{"type": "object"}') if self.type == "json_object" else None

    def told(self) -> dict[str, Any]:
        """Return the format as a response tells it, but for the schema: the turn's settings have
        it."""
        if self.type != "json_schema":
            return {"type": self.type}
        strict = True if self.strict is None else self.strict
        return {"type": self.type, "name": self.name, "description": self.description, "strict": strict}


class TextOptions(Fields):
    """Options of the text."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {"verbosity": Refusal("ask for it in the input", ("medium",))}

    format: TextFormat | None = None
