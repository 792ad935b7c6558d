"""The OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from gateway.bodies import ChatCompletionChunk, CompletionChunk
from gateway.responses.bodies import ResponseEvent

_CHUNKS = ChatCompletionChunk, CompletionChunk, ResponseEvent
"""Bodies that FastAPI does not find: those of events."""


class Application(FastAPI):
    """An application whose document describes the events of streams too."""

    def openapi(self) -> dict[str, Any]:
        """Return the document. It is made once."""
        if not self.openapi_schema:
            made = super().openapi()
            reference = "#/components/schemas/{model}"
            _, chunks = models_json_schema([(chunk, "serialization") for chunk in _CHUNKS], ref_template=reference)
            made["components"]["schemas"] |= chunks["$defs"]
        assert self.openapi_schema is not None
        return self.openapi_schema
